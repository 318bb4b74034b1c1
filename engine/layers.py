"""The parts that model families share: linear maps, norms, rotation, attention, feed-forward.

Plain classes over tensors and kernels. They know no family's order of parts, no file format
and no sequence: what a step looks like comes in a `GroupStep`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model_config import RopeConfig
from kernels import Kernels
from kernels.gated_activation import Activation
from kernels.paged_plan import AttentionPlan


class Linear:
    """x @ weight.T + bias. Other weight formats are other classes with this call."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels) -> None:
        self.out_features, self.in_features = weight.shape
        self._multiply = kernels.pack_linear(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(x)


class Embedding:
    """Rows of a table, by token id."""

    def __init__(self, table: Tensor, scale: float | None = None) -> None:
        self.table = table  # [vocab, hidden]
        # Rounded to the table's type first, as the models were trained.
        self._scale = None if scale is None else torch.tensor(scale, dtype=table.dtype)

    def __call__(self, token_ids: Tensor) -> Tensor:
        rows = F.embedding(token_ids, self.table)
        return rows if self._scale is None else rows.mul_(self._scale)


class RMSNorm:
    """Weight [dim], or [rows, dim] where each of a token's rows has one of its own."""

    def __init__(self, weight: Tensor, eps: float, kernels: Kernels) -> None:
        self._weight = weight.float()
        self._eps = eps
        self._norm = kernels.rms_norm

    def __call__(self, x: Tensor) -> Tensor:
        return self._norm(x, self._weight, self._eps)


class Rope:
    """Cosines and sines for positions, made each step: a table would outweigh small models."""

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(config, head_dim).to(device)

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin as `kernels.rotary` takes them, [tokens, 1, head_dim]."""
        angles = positions[:, None, None] * self._frequencies
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions, float32 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / config.theta**exponents
    if config.kind == "linear":
        return plain / config.factor
    if config.kind == "divided":
        return plain / torch.tensor(config.divisors, dtype=torch.float32)
    if config.kind == "llama3":
        # Wavelengths that fit often into the first training's context keep their speed,
        # those that do not fit are slowed by `factor`, between the two it is blended.
        turns = config.original_max_position * plain / (2 * torch.pi)
        span = config.high_freq_factor - config.low_freq_factor
        keep = ((turns - config.low_freq_factor) / span).clamp(0.0, 1.0)
        return (1 - keep) * plain / config.factor + keep * plain
    return plain


@dataclass(frozen=True, slots=True)
class GroupStep:
    """What one KV group's layers need to know of a step."""

    kv: tuple[Tensor, ...]
    """Each layer's view of the pool: [blocks, 2, block_size, kv_heads, head_dim]."""
    plan: AttentionPlan
    slot_blocks: Tensor
    slot_offsets: Tensor
    cos: Tensor
    sin: Tensor


class Attention:
    """Queries, keys and values from one product; keys and values go to the pool."""

    def __init__(
        self,
        qkv: Linear,
        out: Linear,
        *,
        heads: int,
        kv_heads: int,
        scale: float,
        place: tuple[int, int],
        kernels: Kernels,
        qk_norm: RMSNorm | None = None,
    ) -> None:
        self._qkv, self._out, self._qk_norm = qkv, out, qk_norm
        self._heads, self._kv_heads, self._scale = heads, kv_heads, scale
        self._rows = heads + 2 * kv_heads
        self._group, self._slot = place
        """Which KV group the layer is in, and its place there."""
        self._kernels = kernels

    def __call__(self, x: Tensor, steps: tuple[GroupStep, ...]) -> Tensor:
        step, kernels = steps[self._group], self._kernels
        layer_kv = step.kv[self._slot]
        tokens = x.shape[0]
        qkv = self._qkv(x).view(tokens, self._rows, -1)
        query_key, value = qkv[:, : -self._kv_heads], qkv[:, -self._kv_heads :]
        if self._qk_norm is not None:
            query_key = self._qk_norm(query_key)
        query_key = kernels.rotary(query_key, step.cos, step.sin)
        query, key = query_key[:, : self._heads], query_key[:, self._heads :]
        kernels.write_kv(layer_kv, key, value, step.slot_blocks, step.slot_offsets)
        attended = kernels.paged_attention(query, layer_kv, step.plan, self._scale)
        return self._out(attended.view(tokens, -1))


class GatedMLP:
    """down(activation(gate(x)) * up(x)), gate and up from one product."""

    def __init__(
        self, gate_up: Linear, down: Linear, activation: Activation, kernels: Kernels
    ) -> None:
        self._gate_up, self._down = gate_up, down
        self._activation: Activation = activation
        self._gated = kernels.gated_activation

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._gated(self._gate_up(x), self._activation))
