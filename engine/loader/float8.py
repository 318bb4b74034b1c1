"""Eight-bit floats with scales, as quantized checkpoints store matrices: read as plain numbers.

The scales of `x.weight` are in `x.weight_scale_inv` or `x.weight_scale`: one number, one for
each row, or one for each block of rows and columns. All of them multiply.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.loader.errors import LoadError
from engine.loader.fields import Fields
from engine.loader.safetensors_file import SafetensorsFile

_SUFFIXES = ("_scale_inv", "_scale")
_DEFAULT_BLOCK = (128, 128)


def check_quantization(path: Path, settings: Mapping[str, Any]) -> tuple[int, int]:
    """The size of blocks that share a scale, [rows, columns].

    Raises LoadError where config.json names a quantization other than eight-bit floats.
    """
    part = Fields(path, settings).part("quantization_config")
    if part is None:
        return _DEFAULT_BLOCK
    method = part.text("quant_method", "")
    if method == "compressed-tensors":
        part.refuse("format", unless=("float-quantized", "naive-quantized"), why=_ONLY_FLOAT8)
    elif method == "modelopt":
        part.refuse("quant_algo", unless=("FP8",), why=_ONLY_FLOAT8)
    elif method not in ("fp8", "fbgemm_fp8"):
        raise part.fault("quant_method", f"is {method!r}: {_ONLY_FLOAT8}")
    block = part.get("weight_block_size") or list(_DEFAULT_BLOCK)
    if not (
        isinstance(block, list)
        and len(block) == 2
        and all(isinstance(b, int) and b > 0 for b in block)
    ):
        raise part.fault("weight_block_size", f"is {block!r}, not two positive whole numbers")
    return block[0], block[1]


_ONLY_FLOAT8 = "of quantized checkpoints only those of float8_e4m3fn weights are supported"


class Scale:
    """One matrix's scales."""

    def __init__(self, values: Tensor, block: tuple[int, int]) -> None:
        self._values, self._block = values, block  # float32, [block rows, block columns]

    def apply(self, first: int, piece: Tensor) -> Tensor:
        """The float32 numbers of rows from `first` on."""
        values = piece.float()
        if piece.ndim < 2:
            return values.mul_(self._values.flatten())
        rows, columns = self._block
        of_row = self._values[torch.arange(first, first + len(piece)) // rows]
        width = piece.shape[1]
        return values.mul_(of_row.repeat_interleave(columns, dim=1)[:, :width])


class Float8Scales:
    """The scales in a checkpoint's files."""

    def __init__(
        self,
        path: Path,
        files: Mapping[str, SafetensorsFile],
        block: tuple[int, int],
        *,
        required: bool,
    ) -> None:
        """`required`: the checkpoint says that it is quantized, so every matrix has scales."""
        self._path, self._files, self._block = path, files, block
        self._required = required

    def of(self, name: str, shape: tuple[int, ...]) -> Scale | None:
        """The scales of tensor `name`; None where there need be none: numbers as they are.

        Raises LoadError where they are missing or do not fit the tensor.
        """
        found = next((name + s for s in _SUFFIXES if name + s in self._files), None)
        if found is None:
            if self._required:
                either = " and ".join(name + suffix for suffix in _SUFFIXES)
                raise LoadError(
                    self._path, f"tensors {either} are missing: one has to scale {name}"
                )
            return None
        file = self._files[found]
        stored = file.tensors[found].shape
        pieces = [piece.float().clone() for _, piece in file.pieces(found)]
        values = torch.cat(pieces) if pieces else torch.empty(stored)
        if values.numel() == 1:
            return Scale(values.view(1, 1), (max(shape[0], 1), shape[-1]))
        if len(shape) != 2:
            raise LoadError(self._path, f"tensor {found} scales {name}, which is no matrix")
        rows, columns = shape
        if values.numel() == rows and stored in ((rows,), (rows, 1)):
            return Scale(values.view(rows, 1), (1, columns))
        block_rows, block_columns = self._block
        fitting = (-(-rows // block_rows), -(-columns // block_columns))
        if stored != fitting:
            raise LoadError(
                self._path,
                f"tensor {found} has shape {list(stored)}, which fits no scales of "
                f"{list(shape)}: blocks of {list(self._block)} need {list(fitting)}",
            )
        return Scale(values, self._block)
