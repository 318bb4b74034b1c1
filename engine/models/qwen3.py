"""Qwen3: Llama's layers with normed queries and keys."""

from engine.models.base import Block, CausalLM, Weights
from engine.models.blocks import PreNormBlock


class Qwen3(CausalLM):
    """Qwen3ForCausalLM."""

    def _block(self, layer: int, weights: Weights) -> Block:
        at = f"model.layers.{layer}"
        return PreNormBlock(
            self._norm_of(f"{at}.input_layernorm", weights),
            self._attention(layer, weights, qk_norm=self._qk_norm(layer, weights)),
            self._norm_of(f"{at}.post_attention_layernorm", weights),
            self._mlp(layer, weights, "silu"),
        )
