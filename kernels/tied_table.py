"""An embedding table that is the output head as well, held once.

Where oneDNN repacks the head's matrix, tokens' rows are gathered from the packed bytes: a
plain copy beside them would be the largest tensor of a small model, and a head that is left
plain takes twice the time at one row. The table is packed some rows at a time as it comes, so
that it is never there twice either. The order of the packed bytes is oneDNN's own business: it
is found out by packing marks, and products are checked against rows in the end; a plain copy
is kept where it is not as expected.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.linear import LinearKernel, pack_weight, packed_product, plain_product

Rows = Callable[[Tensor], Tensor]
"""Token ids, int64 [tokens], give rows of the table, [tokens, in]: fresh memory."""
Pieces = Iterable[tuple[int, Tensor]]
"""Rows of a table in ascending order, of any floating type: the first one's number, and they.
A piece may be gone once the next is asked for."""
PackTiedTable = Callable[
    [tuple[int, int], torch.dtype, torch.device, Pieces], tuple[LinearKernel, Rows]
]

_STAGED_ROWS = 1024
_CHECKED_ROWS = 256
_MARKS = 128
"""Marks are whole numbers up to this, which every floating type has exactly."""


def pack_tied_table(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device, pieces: Pieces
) -> tuple[LinearKernel, Rows]:
    """Products with a table, [vocab, in], and its rows."""
    vocab, width = shape
    stage = torch.zeros(_STAGED_ROWS, width, dtype=dtype, device=device)
    order = _packed_order(stage) if vocab >= _STAGED_ROWS else None
    packed = None if order is None else _packed_zeros(shape, dtype)
    if order is None or packed is None or _values_of(packed).numel() < order.span(vocab):
        table = torch.empty(shape, dtype=dtype, device=device)
        for first, rows in pieces:
            table[first : first + len(rows)] = rows
        return _with_a_plain_copy(table)
    _fill(packed, order, stage, vocab, pieces)
    product, rows_of = packed_product(packed, None), _PackedRows(packed, order)
    if not _agree(product, rows_of, shape, dtype):
        return _with_a_plain_copy(rows_of(torch.arange(vocab)))
    return product, rows_of


def _with_a_plain_copy(table: Tensor) -> tuple[LinearKernel, Rows]:
    packed = pack_weight(table)
    product = plain_product(table, None) if packed is None else packed_product(packed, None)
    return product, lambda ids: F.embedding(ids, table)


def _packed_zeros(shape: tuple[int, int], dtype: torch.dtype) -> Tensor | None:
    """Memory for a packed table. The source is a mapping that is never written: it takes none."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, shape[0] * shape[1] * dtype.itemsize, flags=private)
    return pack_weight(torch.frombuffer(memory, dtype=dtype).view(shape))


def _fill(packed: Tensor, order: "_Order", stage: Tensor, vocab: int, pieces: Pieces) -> None:
    """Packs rows stage by stage, each into its place."""
    values, staged, done = _values_of(packed), 0, 0

    def flush() -> None:
        part = pack_weight(stage)
        assert part is not None
        start, size = done // order.block * order.apart, order.span(staged)
        values[start : start + size] = _values_of(part)[:size]

    for _, piece in pieces:
        rows = piece
        while len(rows):
            taken = min(len(rows), len(stage) - staged)
            stage[staged : staged + taken] = rows[:taken]
            staged, rows = staged + taken, rows[taken:]
            if staged == len(stage) or done + staged == vocab:
                flush()
                done, staged = done + staged, 0


@dataclass(frozen=True, slots=True)
class _Order:
    """Row r, column c lies at in_block[r % block] + r // block * apart + of_column[c]."""

    in_block: Tensor
    apart: int
    of_column: Tensor

    @property
    def block(self) -> int:
        """Rows that lie interleaved."""
        return len(self.in_block)

    def span(self, rows: int) -> int:
        """Elements that `rows` rows take, padding to whole blocks included."""
        return -(-rows // self.block) * self.apart


class _PackedRows:
    def __init__(self, packed: Tensor, order: _Order) -> None:
        self._packed = packed  # owns the memory that `_values` shows
        self._values, self._order = _values_of(packed), order

    def __call__(self, ids: Tensor) -> Tensor:
        order = self._order
        starts = order.in_block[ids % order.block] + ids // order.block * order.apart
        return self._values.take(starts[:, None] + order.of_column)


def _values_of(packed: Tensor) -> Tensor:
    """A packed tensor's memory, padding and all. Does not keep it alive."""
    size = torch.ops.mkldnn._nbytes(packed)
    memory = (ctypes.c_char * size).from_address(torch.ops.mkldnn.data_ptr(packed))
    return torch.frombuffer(memory, dtype=packed.dtype)


def _packed_order(empty: Tensor) -> _Order | None:
    """How tables of the width and type of `empty`, zeros, are packed; None where it is not by
    blocks of rows, a whole number of which `empty` has."""
    of_row, of_column = _places(empty, empty[:, 0]), _places(empty, empty[0])
    if of_row is None or of_column is None:
        return None
    for block in (size for size in range(1, len(empty) // 2 + 1) if not len(empty) % size):
        apart = of_row[block:] - of_row[:-block]
        if bool((apart == apart[0]).all()) and int(apart[0]) > 0:
            order = _Order(of_row[:block].clone(), int(apart[0]), of_column - of_column[0])
            return order if _holds(order, empty) else None
    return None


def _holds(order: _Order, like: Tensor) -> bool:
    """Whether it is the order of every element, not of the marked row and column alone."""
    sample = torch.arange(like.numel(), dtype=torch.int64).remainder_(251).view(like.shape)
    packed = pack_weight(sample.to(like.dtype))
    if packed is None:
        return False
    return torch.equal(_PackedRows(packed, order)(torch.arange(len(like))), sample.to(like.dtype))


def _places(empty: Tensor, line: Tensor) -> Tensor | None:
    """Where the elements of `line`, a view of zeros, lie once `empty` is packed."""
    numbers = torch.arange(len(line))
    found, unit, places = torch.zeros_like(numbers), 1, None
    while places is None or unit < len(line):
        line.copy_(numbers // unit % _MARKS + 1)
        packed = pack_weight(empty)
        places = None if packed is None else _values_of(packed).nonzero().flatten()
        if packed is None or places is None or len(places) != len(line):
            line.zero_()
            return None
        found += (_values_of(packed)[places].long() - 1) * unit
        unit *= _MARKS
    line.zero_()
    return places[found.argsort()]


def _agree(product: LinearKernel, rows: Rows, shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Whether products are those with the rows, at the table's start and end and in between."""
    ids = torch.linspace(0, shape[0] - 1, _CHECKED_ROWS, dtype=torch.float64).long()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, shape[1], generator=generator).to(dtype)
    expected = F.linear(x.float(), rows(ids).float())
    found = product(x)[:, ids].float()
    return bool((found - expected).abs().max() <= 0.02 * expected.abs().max())
