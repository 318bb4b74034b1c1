"""What every model family does alike: groups of layers, a step's context, the loop, logits.

A family adds its weights and its block. Knows no file format: weights come by name from a
`Weights`, whose names are those of Hugging Face checkpoints.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.kv.layout import KVGroup
from engine.layers import Attention, Embedding, GatedMLP, GroupStep, Linear, RMSNorm, Rope
from engine.model_config import ModelConfig
from engine.models.batch import ForwardBatch, GroupBatch
from kernels import Kernels, kernels_for
from kernels.gated_activation import Activation


class Weights(Protocol):
    """A checkpoint's weights, read and checked on demand, in one type and on one device.

    Raises `engine.loader.LoadError` naming a tensor that is missing or of another shape.
    """

    device: torch.device

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor."""

    def linear(
        self, names: Sequence[str], out_features: Sequence[int], in_features: int, *, bias: bool
    ) -> Linear:
        """The maps at `names` (without `.weight`), as one whose outputs lie side by side."""


class Block(Protocol):
    """One layer of a model."""

    def __call__(self, x: Tensor, steps: tuple[GroupStep, ...]) -> Tensor:
        """[tokens, hidden] to the same; may change `x` in place."""


def kv_groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """The layers by window: full attention first."""
    by_window: dict[int | None, list[int]] = {}
    for layer in range(config.layers):
        by_window.setdefault(config.window_of(layer), []).append(layer)
    return tuple(
        KVGroup(
            name="full" if window is None else f"window-{window}",
            layers=tuple(by_window[window]),
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            window=window,
        )
        for window in sorted(by_window, key=lambda w: (w is not None, w or 0))
    )


class CausalLM(ABC):
    """A decoder. Holds weights and nothing of any sequence: `forward` changes only the pools.

    Not safe for two threads at once on the same pools.
    """

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.kernels: Kernels = kernels_for(weights.device)
        self._groups = kv_groups(config)
        self._places = {
            layer: (number, slot)
            for number, group in enumerate(self._groups)
            for slot, layer in enumerate(group.layers)
        }
        self._ropes = tuple(
            Rope(
                config.rope if group.window is None else config.local_rope,
                config.head_dim,
                weights.device,
            )
            for group in self._groups
        )
        self._embedding = self._embed(weights)
        self._blocks = tuple(self._block(layer, weights) for layer in range(config.layers))
        self._norm = self._norm_of("model.norm", weights)
        self._head = self._output_head(weights)

    @abstractmethod
    def _block(self, layer: int, weights: Weights) -> Block:
        """Reads one layer's weights."""

    def kv_groups(self) -> tuple[KVGroup, ...]:
        """What the pools passed to `forward` must hold, in this order."""
        return self._groups

    def forward(self, batch: ForwardBatch, kv: Sequence[Tensor]) -> Tensor:
        """Computes a step; kv[g] is group g's pool, into which new keys and values go.

        Returns float32 logits, [len(batch.logits_rows), vocab].
        """
        # Made outside, so that the caller may change it; inference mode makes calls cheaper.
        logits = torch.empty(len(batch.logits_rows), self.config.vocab_size, device=kv[0].device)
        with torch.inference_mode():
            x = self._embedding(batch.token_ids)
            steps = tuple(
                self._group_step(number, batch, x.dtype, pool) for number, pool in enumerate(kv)
            )
            for block in self._blocks:
                x = block(x, steps)
            if len(logits):
                logits.copy_(self._head(self._norm(x[batch.logits_rows])))
        return logits

    def _group_step(
        self, number: int, batch: ForwardBatch, dtype: torch.dtype, pool: Tensor
    ) -> GroupStep:
        group: GroupBatch = batch.groups[number]
        cos, sin = self._ropes[number].at(batch.positions, dtype)
        plan = self.kernels.plan_attention(
            group.block_tables,
            group.first_block,
            batch.query_starts,
            batch.context_lengths,
            self._groups[number].window,
            pool,
        )
        return GroupStep(pool.unbind(1), plan, group.slot_blocks, group.slot_offsets, cos, sin)

    def _embed(self, weights: Weights) -> Embedding:
        return Embedding(self._table(weights))

    def _table(self, weights: Weights) -> Tensor:
        shape = (self.config.vocab_size, self.config.hidden_size)
        return weights.tensor("model.embed_tokens.weight", shape)

    def _output_head(self, weights: Weights) -> Linear:
        if self.config.tied:
            return Linear(self._embedding.table, None, self.kernels)
        return weights.linear(
            ["lm_head"], [self.config.vocab_size], self.config.hidden_size, bias=False
        )

    def _norm_of(self, name: str, weights: Weights) -> RMSNorm:
        weight = weights.tensor(f"{name}.weight", (self.config.hidden_size,))
        return RMSNorm(self._norm_weight(weight), self.config.rms_eps, self.kernels)

    def _norm_weight(self, stored: Tensor) -> Tensor:
        """What normed values are multiplied with, float32."""
        return stored.float()

    def _attention(
        self, layer: int, weights: Weights, *, qk_norm: RMSNorm | None = None
    ) -> Attention:
        config, at = self.config, f"model.layers.{layer}.self_attn"
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        bias = config.attention_bias
        return Attention(
            weights.linear(
                [f"{at}.q_proj", f"{at}.k_proj", f"{at}.v_proj"],
                [query, key, key],
                config.hidden_size,
                bias=bias,
            ),
            weights.linear([f"{at}.o_proj"], [config.hidden_size], query, bias=bias),
            heads=config.heads,
            kv_heads=config.kv_heads,
            scale=config.attention_scale,
            place=self._places[layer],
            kernels=self.kernels,
            qk_norm=qk_norm,
        )

    def _mlp(self, layer: int, weights: Weights, activation: Activation) -> GatedMLP:
        config, at = self.config, f"model.layers.{layer}.mlp"
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        return GatedMLP(
            weights.linear([f"{at}.gate_proj", f"{at}.up_proj"], [inner, inner], hidden, bias=bias),
            weights.linear([f"{at}.down_proj"], [hidden], inner, bias=bias),
            activation,
            self.kernels,
        )
