"""From files to a model that computes: Hugging Face directories and GGUF files."""

from engine.loader.errors import LoadError
from engine.loader.load import LoadedModel, load_model

__all__ = ["LoadError", "LoadedModel", "load_model"]
