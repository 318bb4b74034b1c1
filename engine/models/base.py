"""What every model family does alike: groups of layers, a step's context, the loop, logits.

A family adds its weights and its block. Knows no file format: weights come by name from a
`Weights`, whose names are those of Hugging Face checkpoints.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kv.layout import KVGroup
from engine.layers import Attention, Embedding, ExpertsMLP, GatedMLP, GroupStep, Linear, RMSNorm
from engine.model_config import ModelConfig
from engine.models.batch import ForwardBatch, GroupBatch
from engine.rope import Rope
from kernels import Kernels, kernels_for
from kernels.gated_activation import Activation
from kernels.linear import LinearKernel
from kernels.tied_table import Rows


class Weights(Protocol):
    """A checkpoint's weights, read and checked on demand, in one type and on one device.

    Raises `engine.loader.LoadError` naming a tensor that is missing or of another shape.
    """

    dtype: torch.dtype
    device: torch.device

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor."""

    def tied_table(self, name: str, shape: tuple[int, int]) -> tuple[LinearKernel, Rows]:
        """An embedding table as output head, and its rows."""

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
        # The largest matrices come first: while one is packed it is there twice, which
        # counts least while little else is loaded.
        self._head, self._embedding = self._ends(weights)
        self._blocks = tuple(self._block(layer, weights) for layer in range(config.layers))
        self._norm = self._norm_of("model.norm", weights)

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
        return self.logits(self.hidden(batch, kv)[batch.logits_rows])

    def hidden(self, batch: ForwardBatch, kv: Sequence[Tensor]) -> Tensor:
        """Computes a step as `forward` does, up to the last layer's output, [tokens, hidden]."""
        with torch.inference_mode():
            x = self._embedding(batch.token_ids)
            steps = tuple(
                self._group_step(number, batch, x.dtype, pool) for number, pool in enumerate(kv)
            )
            for block in self._blocks:
                x = block(x, steps)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Float32 logits, [rows, vocab], of rows of `hidden`."""
        # Made outside, so that the caller may change it; inference mode makes calls cheaper.
        logits = torch.empty(len(x), self.config.vocab_size, device=x.device)
        with torch.inference_mode():
            if len(x):
                logits.copy_(self._head(self._norm(x)))
                if self.config.final_softcap is not None:
                    cap = self.config.final_softcap
                    logits.div_(cap).tanh_().mul_(cap)
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

    def _ends(self, weights: Weights) -> tuple[LinearKernel, Embedding]:
        """Output head and embedding."""
        vocab, hidden = self.config.vocab_size, self.config.hidden_size
        head: LinearKernel
        rows: Rows
        if self.config.tied:
            head, rows = weights.tied_table("model.embed_tokens.weight", (vocab, hidden))
        else:
            head = weights.linear(["lm_head"], [vocab], hidden, bias=False)
            table = weights.tensor("model.embed_tokens.weight", (vocab, hidden))
            rows = partial(F.embedding, weight=table)
        scale = self._embedding_scale()
        if scale is None:
            return head, Embedding(rows)
        # Rounded to the table's type first, as the models were trained.
        return head, Embedding(rows, torch.tensor(scale, dtype=weights.dtype))

    def _embedding_scale(self) -> float | None:
        """What embedded tokens are multiplied with; None: nothing."""
        return None

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
        return Attention(
            weights.linear(
                [f"{at}.q_proj", f"{at}.k_proj", f"{at}.v_proj"],
                [query, key, key],
                config.hidden_size,
                bias=config.attention_bias,
            ),
            weights.linear(
                [f"{at}.o_proj"], [config.hidden_size], query, bias=config.attention_out_bias
            ),
            heads=config.heads,
            kv_heads=config.kv_heads,
            scale=config.attention_scale,
            place=self._places[layer],
            kernels=self.kernels,
            qk_norm=qk_norm,
            softcap=config.attention_softcap,
        )

    def _qk_norm(self, layer: int, weights: Weights) -> RMSNorm:
        """Queries' and keys' norms as one, a row for each head."""
        config, at = self.config, f"model.layers.{layer}.self_attn"
        query = weights.tensor(f"{at}.q_norm.weight", (config.head_dim,))
        key = weights.tensor(f"{at}.k_norm.weight", (config.head_dim,))
        rows = torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1)))
        return RMSNorm(self._norm_weight(rows), config.rms_eps, self.kernels)

    def _mlp(self, layer: int, weights: Weights, activation: Activation) -> GatedMLP:
        config, at = self.config, f"model.layers.{layer}.mlp"
        names = (f"{at}.gate_proj", f"{at}.up_proj", f"{at}.down_proj")
        return self._gated(names, config.intermediate_size, weights, activation, config.mlp_bias)

    def _gated(
        self,
        names: tuple[str, str, str],
        inner: int,
        weights: Weights,
        activation: Activation,
        bias: bool = False,
    ) -> GatedMLP:
        """`names` are those of gate, up and down."""
        gate, up, down = names
        hidden = self.config.hidden_size
        return GatedMLP(
            weights.linear([gate, up], [inner, inner], hidden, bias=bias),
            weights.linear([down], [hidden], inner, bias=bias),
            activation,
            self.kernels,
        )

    def _experts(self, at: str, parts: tuple[str, str, str], weights: Weights) -> ExpertsMLP:
        """A mixture of experts; `parts` is what the family calls gate, up and down."""
        experts = self.config.experts
        if experts is None:
            raise ValueError(f"{self.config.architecture} needs experts")
        gate, up, down = parts
        return ExpertsMLP(
            weights.linear([f"{at}.gate"], [experts.count], self.config.hidden_size, bias=False),
            [
                self._gated(
                    (f"{one}.{gate}", f"{one}.{up}", f"{one}.{down}"),
                    experts.intermediate_size,
                    weights,
                    "silu",
                )
                for one in (f"{at}.experts.{number}" for number in range(experts.count))
            ],
            per_token=experts.per_token,
            normalized=experts.normalized,
            kernels=self.kernels,
        )
