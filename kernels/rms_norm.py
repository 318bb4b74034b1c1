"""Root-mean-square normalization over the last dimension."""

from collections.abc import Callable

import torch
from torch import Tensor

RMSNormKernel = Callable[[Tensor, Tensor, float], Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, in float32, rounded once to x's type.

    `weight` is float32, [dim] or [rows, dim] with one row for each of x's last rows.
    """
    exact = x.float()
    # At one row on CPU, torch's own rms_norm takes half as long again as these steps.
    length: Tensor = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
    scale = length.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
    normed: Tensor = (exact * scale).mul_(weight)
    return normed.to(x.dtype)
