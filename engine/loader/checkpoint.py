"""What every file format offers the loader: settings, and tensors by their names.

Names and conventions are those of Hugging Face checkpoints, whatever a file stores: a format
that permutes rows or shifts norms undoes it while reading.
"""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from engine.model_config import ModelConfig

SAMPLED_BYTES = 64 * 1024
"""Of each end of a tensor's bytes, that go into a checkpoint's digest."""


class Checkpoint(Protocol):
    """An open checkpoint. Raises LoadError where the file does not hold what it should."""

    config: ModelConfig
    total_bytes: int
    """Stored bytes of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape. Raises LoadError where it is missing."""

    def stored_name(self, name: str) -> str:
        """What the file itself calls the tensor, for messages."""

    def stored_bytes(self, name: str) -> int:
        """How many bytes the tensor takes in the file."""

    def read(self, name: str, out: Tensor) -> None:
        """Fills `out`, of the tensor's shape and any floating type, with its values."""

    def pieces(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """The rows of a matrix that every format stores alike, such as the embedding, some at
        a time: the first row's number, and the rows, gone once the next are asked for."""

    def digest(self) -> str:
        """SHA-256 over settings, tensor names, shapes and types, and both ends of each
        tensor's bytes: equal for equal models, without reading gigabytes."""

    def close(self) -> None:
        """Lets go of the files."""
