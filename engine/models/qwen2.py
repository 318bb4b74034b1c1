"""Qwen2: Llama's layers with biased queries, keys and values.

The configuration may give its last layers a sliding window.
"""

from engine.models.llama import Llama


class Qwen2(Llama):
    """Qwen2ForCausalLM."""
