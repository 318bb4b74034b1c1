"""Mistral: Llama's layers; where the configuration has a window, all of them slide."""

from engine.models.llama import Llama


class Mistral(Llama):
    """MistralForCausalLM."""
