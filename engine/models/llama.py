"""Llama: norm, attention, norm, gated feed-forward, each added to the residual stream."""

from engine.models.base import Block, CausalLM, Weights
from engine.models.blocks import PreNormBlock


class Llama(CausalLM):
    """LlamaForCausalLM."""

    def _block(self, layer: int, weights: Weights) -> Block:
        at = f"model.layers.{layer}"
        return PreNormBlock(
            self._norm_of(f"{at}.input_layernorm", weights),
            self._attention(layer, weights),
            self._norm_of(f"{at}.post_attention_layernorm", weights),
            self._mlp(layer, weights, "silu"),
        )
