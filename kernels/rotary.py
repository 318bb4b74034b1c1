"""Rotary position embedding, the two halves of a head rotated against each other."""

from collections.abc import Callable

import torch
from torch import Tensor

Rotary = Callable[[Tensor, Tensor, Tensor], Tensor]


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [tokens, heads, dim]; cos and sin: [tokens, 1, dim], of x's type.

    Dimension i < dim / 2 pairs with i + dim / 2. `sin` comes with its first half negated:
    out = x * cos + swap_halves(x) * sin.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
