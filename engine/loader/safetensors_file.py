"""One safetensors file, mapped: where its tensors lie, and their bytes while they are read.

Pages are given back once read, so that a file never counts towards the process's memory
beyond the piece in hand. Knows no model.
"""

import json
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.loader.errors import LoadError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
"""The types that are read."""
PIECE_BYTES = 2 << 20
_PREFIX_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies, and what it is."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """First byte of the data, from the start of the file."""
    end: int


class SafetensorsFile:
    """An open file. Raises LoadError where it is truncated or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # Private and writable, as torch wants its memory; nothing is written.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise LoadError(path, "there is no such file") from None
        except (OSError, ValueError) as error:
            raise LoadError(path, f"truncated or damaged: {error}") from error
        try:
            self.tensors = self._read_header()
        except BaseException:
            self.close()
            raise

    def pieces(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """A tensor's rows, some at a time: the first row's number, and the rows.

        Rows run along the first dimension; a vector is its values, a number is one row. A
        piece is gone once the next is asked for. Raises LoadError on an unsupported type.
        """
        stored = self.tensors[name]
        dtype = DTYPES.get(stored.dtype)
        if dtype is None:
            raise LoadError(
                self.path, f"tensor {name} has type {stored.dtype}, which is not supported"
            )
        rows, row_shape = (stored.shape or (1,))[0], stored.shape[1:]
        row_values = math.prod(row_shape)
        row_bytes = row_values * dtype.itemsize
        step = max(1, PIECE_BYTES // max(1, row_bytes))
        for first in range(0, rows if row_bytes else 0, step):
            count = min(step, rows - first)
            offset = stored.start + first * row_bytes
            piece = torch.frombuffer(
                self._data, dtype=dtype, count=count * row_values, offset=offset
            )
            yield first, piece.view(count, *row_shape)
            del piece
            self._release()

    def read_bytes(self, start: int, end: int) -> bytes:
        """A copy of a range of the file."""
        data = self._data[start:end]
        self._release()
        return data

    def close(self) -> None:
        """Lets go of the file."""
        self._data.close()

    def _release(self) -> None:
        # All of the file: the kernel maps more around what is read.
        self._data.madvise(mmap.MADV_DONTNEED)

    def _read_header(self) -> dict[str, StoredTensor]:
        size = len(self._data)
        length = int.from_bytes(self._data[:_PREFIX_BYTES], "little")
        begin = _PREFIX_BYTES + length
        if length > _MAX_HEADER_BYTES or begin > size:
            raise LoadError(
                self.path, f"truncated or damaged: a header of {length} bytes in {size}"
            )
        try:
            header = json.loads(self._data[_PREFIX_BYTES:begin])
            return {
                name: self._place(name, entry, begin)
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LoadError(self.path, f"truncated or damaged: header: {error!r}") from error

    def _place(self, name: str, entry: dict[str, Any], begin: int) -> StoredTensor:
        start, end = entry["data_offsets"]
        stored = StoredTensor(
            str(entry["dtype"]), tuple(map(int, entry["shape"])), begin + start, begin + end
        )
        dtype = DTYPES.get(stored.dtype)
        if dtype is not None and end - start != math.prod(stored.shape) * dtype.itemsize:
            raise LoadError(self.path, f"damaged: tensor {name} has {end - start} bytes")
        if not begin <= stored.start <= stored.end <= len(self._data):
            raise LoadError(
                self.path,
                f"truncated: tensor {name} ends at byte {stored.end}, the file at "
                f"{len(self._data)}",
            )
        return stored
