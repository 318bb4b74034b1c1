"""Model families: one readable file each, over the shared layers of `engine.layers`."""

from engine.models.base import CausalLM, Weights
from engine.models.batch import ForwardBatch, GroupBatch
from engine.models.gemma3 import Gemma3
from engine.models.llama import Llama

FAMILIES: dict[str, type[CausalLM]] = {"llama": Llama, "gemma3": Gemma3}
"""By `ModelConfig.architecture`."""

__all__ = ["FAMILIES", "CausalLM", "ForwardBatch", "GroupBatch", "Weights"]
