"""Gemma 2, text: sandwich norms, every other layer slides, scores and logits soft-capped.

Norms multiply by one plus the stored weight; the embedding is scaled by sqrt(hidden).
"""

from torch import Tensor

from engine.models.base import Block, CausalLM, Weights
from engine.models.blocks import SandwichBlock


class Gemma2(CausalLM):
    """Gemma2ForCausalLM."""

    def _embedding_scale(self) -> float:
        return float(self.config.hidden_size**0.5)

    def _norm_weight(self, stored: Tensor) -> Tensor:
        return stored.float() + 1.0

    def _block(self, layer: int, weights: Weights) -> Block:
        at = f"model.layers.{layer}"
        return SandwichBlock(
            self._norm_of(f"{at}.input_layernorm", weights),
            self._attention(layer, weights),
            self._norm_of(f"{at}.post_attention_layernorm", weights),
            self._norm_of(f"{at}.pre_feedforward_layernorm", weights),
            self._mlp(layer, weights, "gelu_tanh"),
            self._norm_of(f"{at}.post_feedforward_layernorm", weights),
        )
