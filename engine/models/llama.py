"""Llama: norm, attention, norm, gated feed-forward, each added to the residual stream."""

from torch import Tensor

from engine.layers import Attention, GatedMLP, GroupStep, RMSNorm
from engine.models.base import Block, CausalLM, Weights


class LlamaBlock:
    """One layer."""

    def __init__(
        self, attention: Attention, mlp: GatedMLP, attention_norm: RMSNorm, mlp_norm: RMSNorm
    ) -> None:
        self._attention, self._mlp = attention, mlp
        self._attention_norm, self._mlp_norm = attention_norm, mlp_norm

    def __call__(self, x: Tensor, steps: tuple[GroupStep, ...]) -> Tensor:
        x.add_(self._attention(self._attention_norm(x), steps))
        return x.add_(self._mlp(self._mlp_norm(x)))


class Llama(CausalLM):
    """LlamaForCausalLM."""

    def _block(self, layer: int, weights: Weights) -> Block:
        at = f"model.layers.{layer}"
        return LlamaBlock(
            self._attention(layer, weights),
            self._mlp(layer, weights, "silu"),
            self._norm_of(f"{at}.input_layernorm", weights),
            self._norm_of(f"{at}.post_attention_layernorm", weights),
        )
