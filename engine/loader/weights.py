"""Reads a model's weights from a checkpoint, tensor by tensor, in the type it computes in.

Each tensor is converted straight into its place, so that loading holds little more than
the finished weights. Knows no file format.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.layers import Linear
from engine.loader.checkpoint import Checkpoint
from engine.loader.errors import LoadError
from kernels import kernels_for

Progress = Callable[[int, int], None]
"""Called with stored bytes read so far, and of all."""


class CheckpointWeights:
    """`engine.models.Weights` over an open checkpoint."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        path: Path,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress | None,
    ) -> None:
        self.device = device
        self._checkpoint, self._path, self._dtype = checkpoint, path, dtype
        self._progress = progress
        self._done_bytes = 0

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor. Raises LoadError where it is missing or has another shape."""
        self._check(name, shape)
        out = torch.empty(shape, dtype=self._dtype, device=self.device)
        self._read(name, out)
        return out

    def linear(
        self, names: Sequence[str], out_features: Sequence[int], in_features: int, *, bias: bool
    ) -> Linear:
        """The maps at `names` as one. Raises LoadError as `tensor` does."""
        weight = torch.empty(
            (sum(out_features), in_features), dtype=self._dtype, device=self.device
        )
        biases = torch.empty(sum(out_features) if bias else 0, dtype=self._dtype)
        start = 0
        for name, rows in zip(names, out_features, strict=True):
            self._check(f"{name}.weight", (rows, in_features))
            self._read(f"{name}.weight", weight[start : start + rows])
            if bias:
                self._check(f"{name}.bias", (rows,))
                self._read(f"{name}.bias", biases[start : start + rows])
            start += rows
        return Linear(weight, biases.to(self.device) if bias else None, kernels_for(self.device))

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        found = self._checkpoint.shape(name)
        if found != shape:
            raise LoadError(
                self._path,
                f"tensor {self._checkpoint.stored_name(name)} has shape {list(found)}, "
                f"the model needs {list(shape)}",
            )

    def _read(self, name: str, out: Tensor) -> None:
        self._checkpoint.read(name, out)
        self._done_bytes += self._checkpoint.stored_bytes(name)
        if self._progress is not None:
            self._progress(self._done_bytes, self._checkpoint.total_bytes)
