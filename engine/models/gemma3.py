"""Gemma 3, text: sandwich norms, normed queries and keys, mostly sliding windows.

Norms multiply by one plus the stored weight; the embedding is scaled by sqrt(hidden).
"""

import torch
from torch import Tensor

from engine.layers import Attention, Embedding, GatedMLP, GroupStep, RMSNorm
from engine.models.base import Block, CausalLM, Weights


class Gemma3Block:
    """One layer."""

    def __init__(
        self,
        attention: Attention,
        mlp: GatedMLP,
        before_attention: RMSNorm,
        after_attention: RMSNorm,
        before_mlp: RMSNorm,
        after_mlp: RMSNorm,
    ) -> None:
        self._attention, self._mlp = attention, mlp
        self._before_attention, self._after_attention = before_attention, after_attention
        self._before_mlp, self._after_mlp = before_mlp, after_mlp

    def __call__(self, x: Tensor, steps: tuple[GroupStep, ...]) -> Tensor:
        x.add_(self._after_attention(self._attention(self._before_attention(x), steps)))
        return x.add_(self._after_mlp(self._mlp(self._before_mlp(x))))


class Gemma3(CausalLM):
    """Gemma3ForCausalLM."""

    def _embed(self, weights: Weights) -> Embedding:
        return Embedding(self._table(weights), scale=self.config.hidden_size**0.5)

    def _norm_weight(self, stored: Tensor) -> Tensor:
        return stored.float() + 1.0

    def _block(self, layer: int, weights: Weights) -> Block:
        at = f"model.layers.{layer}"
        return Gemma3Block(
            self._attention(layer, weights, qk_norm=self._qk_norm(layer, weights)),
            self._mlp(layer, weights, "gelu_tanh"),
            self._norm_of(f"{at}.input_layernorm", weights),
            self._norm_of(f"{at}.post_attention_layernorm", weights),
            self._norm_of(f"{at}.pre_feedforward_layernorm", weights),
            self._norm_of(f"{at}.post_feedforward_layernorm", weights),
        )

    def _qk_norm(self, layer: int, weights: Weights) -> RMSNorm:
        """Queries' and keys' norms as one, a row for each head."""
        config, at = self.config, f"model.layers.{layer}.self_attn"
        query = weights.tensor(f"{at}.q_norm.weight", (config.head_dim,))
        key = weights.tensor(f"{at}.k_norm.weight", (config.head_dim,))
        rows = torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1)))
        return RMSNorm(self._norm_weight(rows), config.rms_eps, self.kernels)
