"""Multiplication by a dense weight matrix that stays the same from step to step.

On CPU the matrix is repacked once into oneDNN's blocked order, for any number of rows: at
one row that reads memory twice as fast as `F.linear` does, and float32 needs less than half
the time at many rows.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

LinearKernel = Callable[[Tensor], Tensor]
"""[rows, in] gives [rows, out]."""
PackLinear = Callable[[Tensor, Tensor | None], LinearKernel]

PACK_ROWS = 16
"""The row count that the packed order is chosen for; with it, no count is slow."""
ROW_BUCKET = 32
"""Above PACK_ROWS rows are padded to a multiple of this: oneDNN generates and keeps code for
each row count that it meets, half a megabyte and half a millisecond each."""


@cache
def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies packed weights of this type fast on this machine."""
    if not torch._C._has_mkldnn:
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


def pack_linear(weight: Tensor, bias: Tensor | None) -> LinearKernel:
    """x @ weight.T + bias for weight [out, in]; keeps its own copy where it repacks."""
    packed = pack_weight(weight)
    return plain_product(weight, bias) if packed is None else packed_product(packed, bias)


def pack_weight(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's order; None where it is better left as it is."""
    if weight.device.type != "cpu" or not _packs(weight.dtype):
        return None
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
    return packed


def plain_product(weight: Tensor, bias: Tensor | None) -> LinearKernel:
    """x @ weight.T + bias."""
    return lambda x: F.linear(x, weight, bias)


def packed_product(packed: Tensor, bias: Tensor | None) -> LinearKernel:
    """The same for a weight as `pack_weight` gives it."""
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def packed_linear(x: Tensor) -> Tensor:
        rows = x.shape[0]
        padding = -rows % ROW_BUCKET if rows > PACK_ROWS else 0
        if padding:
            x = F.pad(x, (0, 0, 0, padding))
        product: Tensor = multiply(x, packed, bias, "none", [], "")
        return product[:rows]

    return packed_linear
