"""Loads a model from whatever lies at a path."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from baton.gguf import is_gguf
from engine.loader.checkpoint import Checkpoint
from engine.loader.errors import LoadError
from engine.loader.gguf_file import GGUFCheckpoint
from engine.loader.huggingface import HuggingFaceCheckpoint
from engine.loader.weights import CheckpointWeights, Progress
from engine.model_config import ModelConfig
from engine.models import FAMILIES, CausalLM


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to compute."""

    config: ModelConfig
    digest: str
    """Hex SHA-256 that tells this checkpoint from any other."""
    module: CausalLM
    weight_format: str
    """How the weights are held while computing, such as `bfloat16`."""


def load_model(
    path: Path,
    *,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads a Hugging Face directory or a GGUF file, with weights held in `dtype`.

    `progress` is called with stored bytes read so far and of all. Raises LoadError.
    """
    checkpoint = _open(path)
    try:
        config = _with_possible_ends(checkpoint.config)
        weights = CheckpointWeights(checkpoint, path, dtype, torch.device(device), progress)
        module = FAMILIES[config.architecture](config, weights)
        digest = checkpoint.digest()
    finally:
        checkpoint.close()
    if progress is not None:
        progress(checkpoint.total_bytes, checkpoint.total_bytes)
    return LoadedModel(config, digest, module, str(dtype).removeprefix("torch."))


def _with_possible_ends(config: ModelConfig) -> ModelConfig:
    """`config` without end tokens past the vocabulary, which some checkpoints name: none of
    them can ever be drawn."""
    possible = frozenset(token for token in config.eos_token_ids if token < config.vocab_size)
    return replace(config, eos_token_ids=possible)


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        return HuggingFaceCheckpoint(path)
    if not path.exists():
        raise LoadError(path, "there is no such file or directory")
    if not is_gguf(path):
        raise LoadError(path, "neither a Hugging Face directory nor a GGUF file")
    return GGUFCheckpoint(path)
