"""Qwen3-MoE: Qwen3 whose feed-forward blocks are experts, but for those that stay dense."""

from engine.models.base import Block, CausalLM, Weights
from engine.models.blocks import FeedForward, PreNormBlock


class Qwen3Moe(CausalLM):
    """Qwen3MoeForCausalLM."""

    def _block(self, layer: int, weights: Weights) -> Block:
        at = f"model.layers.{layer}"
        return PreNormBlock(
            self._norm_of(f"{at}.input_layernorm", weights),
            self._attention(layer, weights, qk_norm=self._qk_norm(layer, weights)),
            self._norm_of(f"{at}.post_attention_layernorm", weights),
            self._feed_forward(layer, weights),
        )

    def _feed_forward(self, layer: int, weights: Weights) -> FeedForward:
        experts = self.config.experts
        if experts is None or layer not in experts.layers:
            return self._mlp(layer, weights, "silu")
        at = f"model.layers.{layer}.mlp"
        return self._experts(at, ("gate_proj", "up_proj", "down_proj"), weights)
