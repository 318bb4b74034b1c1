"""Mixtral: Mistral whose feed-forward blocks are mixtures of experts."""

from engine.models.base import Block, CausalLM, Weights
from engine.models.blocks import PreNormBlock


class Mixtral(CausalLM):
    """MixtralForCausalLM."""

    def _block(self, layer: int, weights: Weights) -> Block:
        at = f"model.layers.{layer}"
        return PreNormBlock(
            self._norm_of(f"{at}.input_layernorm", weights),
            self._attention(layer, weights),
            self._norm_of(f"{at}.post_attention_layernorm", weights),
            self._experts(f"{at}.block_sparse_moe", ("w1", "w3", "w2"), weights),
        )
