"""The parts that model families share: linear maps, norms, attention, feed-forward, experts.

Plain classes over tensors and kernels. They know no family's order of parts, no file format
and no sequence: what a step looks like comes in a `GroupStep`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kernels import Kernels
from kernels.gated_activation import Activation
from kernels.paged_plan import AttentionPlan
from kernels.tied_table import Rows


class Linear:
    """x @ weight.T + bias. Other weight formats are other classes with this call."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels) -> None:
        self.out_features, self.in_features = weight.shape
        self._multiply = kernels.pack_linear(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(x)


class Embedding:
    """Rows of a table, by token id, times `scale`."""

    def __init__(self, rows: Rows, scale: Tensor | None = None) -> None:
        self._rows, self._scale = rows, scale

    def __call__(self, token_ids: Tensor) -> Tensor:
        rows = self._rows(token_ids)
        return rows if self._scale is None else rows.mul_(self._scale)


class RMSNorm:
    """Weight [dim], or [rows, dim] where each of a token's rows has one of its own."""

    def __init__(self, weight: Tensor, eps: float, kernels: Kernels) -> None:
        self._weight = weight.float()
        self._eps = eps
        self._norm = kernels.rms_norm

    def __call__(self, x: Tensor) -> Tensor:
        return self._norm(x, self._weight, self._eps)


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
        softcap: float | None = None,
    ) -> None:
        self._qkv, self._out, self._qk_norm, self._softcap = qkv, out, qk_norm, softcap
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
        attended = kernels.paged_attention(query, layer_kv, step.plan, self._scale, self._softcap)
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


class ExpertsMLP:
    """Sends each token to the few experts that its router scores highest.

    Shares are softmax over all experts; `normalized` makes those of the chosen add up to one,
    which is the same as a softmax over the chosen alone.
    """

    def __init__(
        self,
        router: Linear,
        experts: Sequence[GatedMLP],
        *,
        per_token: int,
        normalized: bool,
        kernels: Kernels,
    ) -> None:
        self._router, self._experts = router, tuple(experts)
        self._per_token, self._normalized = per_token, normalized
        self._mix = kernels.mix_experts

    def __call__(self, x: Tensor) -> Tensor:
        scores = self._router(x).float().softmax(dim=-1)
        shares, chosen = scores.topk(self._per_token, dim=-1)
        if self._normalized:
            shares /= shares.sum(dim=-1, keepdim=True)
        return self._mix(x, chosen, shares, self._experts)
