"""Model families: one readable file each, over the shared layers of `engine.layers`."""

from engine.models.base import CausalLM, Weights
from engine.models.batch import ForwardBatch, GroupBatch
from engine.models.gemma2 import Gemma2
from engine.models.gemma3 import Gemma3
from engine.models.llama import Llama
from engine.models.mistral import Mistral
from engine.models.mixtral import Mixtral
from engine.models.qwen2 import Qwen2
from engine.models.qwen3 import Qwen3
from engine.models.qwen3_moe import Qwen3Moe

FAMILIES: dict[str, type[CausalLM]] = {
    "gemma2": Gemma2,
    "gemma3": Gemma3,
    "llama": Llama,
    "mistral": Mistral,
    "mixtral": Mixtral,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "qwen3_moe": Qwen3Moe,
}
"""By `ModelConfig.architecture`."""

__all__ = ["FAMILIES", "CausalLM", "ForwardBatch", "GroupBatch", "Weights"]
