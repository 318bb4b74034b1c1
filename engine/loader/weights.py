"""Reads a model's weights from a checkpoint, tensor by tensor, in the type it computes in.

Each tensor is converted straight into its place, so that loading holds little more than
the finished weights. Knows no file format.
"""

import math
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.layers import Linear
from engine.loader.checkpoint import Checkpoint
from engine.loader.errors import LoadError
from kernels import kernels_for
from kernels.linear import LinearKernel
from kernels.tied_table import Rows

Progress = Callable[[int, int], None]
"""Called with stored bytes read so far, and of all."""


_MAPPED_BYTES = 1 << 20


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
        self.dtype = dtype
        self._checkpoint, self._path = checkpoint, path
        self._progress = progress
        self._done_bytes = 0

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor. Raises LoadError where it is missing or has another shape."""
        self._check(name, shape)
        out = _empty(shape, self.dtype, self.device)
        self._read(name, out)
        return out

    def tied_table(self, name: str, shape: tuple[int, int]) -> tuple[LinearKernel, Rows]:
        """An embedding table as output head, and its rows. Raises LoadError as `tensor` does."""
        self._check(name, shape)
        pack = kernels_for(self.device).pack_tied_table
        packed = pack(shape, self.dtype, self.device, self._checkpoint.pieces(name))
        self._report(name)
        return packed

    def linear(
        self, names: Sequence[str], out_features: Sequence[int], in_features: int, *, bias: bool
    ) -> Linear:
        """The maps at `names` as one. Raises LoadError as `tensor` does."""
        parts = list(zip(names, out_features, strict=True))
        for name, rows in parts:  # before there is memory for them: a wrong size may be huge
            self._check(f"{name}.weight", (rows, in_features))
            if bias:
                self._check(f"{name}.bias", (rows,))
        weight = _empty((sum(out_features), in_features), self.dtype, self.device)
        biases = torch.empty(sum(out_features) if bias else 0, dtype=self.dtype)
        start = 0
        for name, rows in parts:
            self._read(f"{name}.weight", weight[start : start + rows])
            if bias:
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
        self._report(name)

    def _report(self, name: str) -> None:
        self._done_bytes += self._checkpoint.stored_bytes(name)
        if self._progress is not None:
            self._progress(self._done_bytes, self._checkpoint.total_bytes)


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a weight. Most are packed and freed at once; a large one is a mapping of its
    own on CPU, which goes back whole, where malloc would keep holes between what stays."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _MAPPED_BYTES:
        return torch.empty(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
