"""A mixture of experts: each token's output is a weighted sum over the experts it chose."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Expert = Callable[[Tensor], Tensor]
"""[rows, hidden] gives the same."""
MixExperts = Callable[[Tensor, Tensor, Tensor, Sequence[Expert]], Tensor]


def mix_experts(x: Tensor, chosen: Tensor, shares: Tensor, experts: Sequence[Expert]) -> Tensor:
    """sum over j of shares[i, j] * experts[chosen[i, j]](x[i]) for each token i.

    `x`: [tokens, hidden]. `chosen`: int64 [tokens, k], no expert twice in a row. `shares`:
    float32 [tokens, k]. Sums in float32, in the order of the experts' numbers whatever else
    is in the batch, and rounds once to x's type. Experts without tokens are not called.
    """
    per_token = chosen.shape[1]
    of_expert = chosen.flatten()
    pairs = of_expert.argsort(stable=True)  # places in `chosen`, those of expert 0 first
    counts = torch.bincount(of_expert, minlength=len(experts)).tolist()
    tokens = pairs // per_token
    weights = shares.flatten()[pairs, None]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    start = 0
    for expert, count in zip(experts, counts, strict=True):
        if count:
            rows = tokens[start : start + count]
            result = expert(x[rows]) * weights[start : start + count]
            out.index_add_(0, rows, result)
            start += count
    return out.to(x.dtype)
