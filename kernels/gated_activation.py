"""The gated activation of a feed-forward block: activation(gate) * up."""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Activation = Literal["silu", "gelu_tanh"]
GatedActivation = Callable[[Tensor, Activation], Tensor]


def gated_activation(gate_up: Tensor, activation: Activation) -> Tensor:
    """Gate and up lie side by side: [tokens, 2 * n] gives [tokens, n]."""
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == "silu":
        return F.silu(gate).mul_(up)
    return F.gelu(gate, approximate="tanh").mul_(up)
