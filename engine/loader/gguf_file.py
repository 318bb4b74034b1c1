"""A GGUF file: one file with settings and, mostly, quantized tensors.

Weights are dequantized while they are read, a few million values at a time, from a mapping
of the file, whose pages are given back once read. What GGUF stores otherwise than Hugging
Face does is undone here: the query and key rows of architecture `llama` are permuted, Gemma's
norms come with one added, and a layer's experts are one stack.
"""

import hashlib
import math
import mmap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from baton.gguf import GGUFError, TensorInfo, read_header
from engine.loader.checkpoint import SAMPLED_BYTES
from engine.loader.errors import LoadError
from engine.loader.gguf_config import read_config
from engine.loader.gguf_names import SHIFTED_NORMS, expert_name, stored_name

_CHUNK_VALUES = 1 << 20


class GGUFCheckpoint:
    """Implements `engine.loader.checkpoint.Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._header = read_header(path)
        except (GGUFError, OSError) as error:
            raise LoadError(path, str(error).removeprefix(f"{path}: ")) from error
        self._check_tensors()
        self._file = path.open("rb")
        self._data = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.config = read_config(self._header, self._rope_divisors())
            self._permuted = self._header.metadata["general.architecture"] == "llama"
            # A vocabulary's lists take a hundred megabytes, and nothing reads them again.
            self._header = replace(self._header, metadata={})
        except BaseException:
            self.close()
            raise
        self.total_bytes = sum(tensor_bytes(info) for info in self._header.tensors.values())

    def _check_tensors(self) -> None:
        for info in self._header.tensors.values():
            if info.ggml_type not in dequantizable():
                raise LoadError(
                    self._path, f"tensor {info.name} has ggml type {info.ggml_type}, "
                    "which is not supported",
                )  # fmt: skip
            block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(info.ggml_type)][0]
            if not info.shape or info.shape[-1] % block:
                raise LoadError(
                    self._path,
                    f"tensor {info.name} has shape {list(info.shape)}: rows of its type are "
                    f"multiples of {block} values",
                )
            end = info.offset + tensor_bytes(info)
            if end > self._header.file_bytes:
                raise LoadError(
                    self._path,
                    f"truncated: tensor {info.name} ends at byte {end}, the file at "
                    f"{self._header.file_bytes}",
                )

    def shape(self, name: str) -> tuple[int, ...]:
        return self._info(name).shape

    def stored_name(self, name: str) -> str:
        stored, number = stored_name(self.config.architecture, name)
        if number is not None and stored not in self._header.tensors:
            alone = expert_name(stored, number)
            return alone if alone in self._header.tensors else stored
        return stored

    def stored_bytes(self, name: str) -> int:
        return tensor_bytes(self._info(name))

    def read(self, name: str, out: Tensor) -> None:
        self._dequantize(self._info(name), out)
        module = name.rpartition(".")[0]
        if self._permuted and module.endswith(("q_proj", "k_proj")):
            heads = self.config.heads if module.endswith("q_proj") else self.config.kv_heads
            pairs = out.view(heads, self.config.head_dim // 2, 2, -1)
            out.copy_(pairs.transpose(1, 2).reshape(out.shape))
        if self.config.architecture in SHIFTED_NORMS and module.endswith("norm"):
            exact = torch.empty(out.shape)
            self._dequantize(self._info(name), exact)
            out.copy_(exact - 1.0)

    def pieces(self, name: str) -> Iterator[tuple[int, Tensor]]:
        return self._pieces(self._info(name))

    def digest(self) -> str:
        start = min((t.offset for t in self._header.tensors.values()), default=len(self._data))
        hasher = hashlib.sha256(self._data[:start])
        for info in self._header.tensors.values():
            end = info.offset + tensor_bytes(info)
            hasher.update(self._data[info.offset : min(end, info.offset + SAMPLED_BYTES)])
            hasher.update(self._data[max(info.offset, end - SAMPLED_BYTES) : end])
            self._data.madvise(mmap.MADV_DONTNEED)
        return hasher.hexdigest()

    def close(self) -> None:
        self._data.close()
        self._file.close()

    def _info(self, name: str) -> TensorInfo:
        stored = self.stored_name(name)
        info = self._header.tensors.get(stored)
        if info is None:
            raise LoadError(self._path, f"tensor {stored} is missing")
        _, number = stored_name(self.config.architecture, name)
        if number is None or "_exps." not in stored:
            return info
        if len(info.shape) != 3 or number >= info.shape[0]:
            raise LoadError(
                self._path, f"tensor {stored} has shape {list(info.shape)}, without expert {number}"
            )
        one = replace(info, shape=info.shape[1:])
        return replace(one, offset=info.offset + number * tensor_bytes(one))

    def _rope_divisors(self) -> tuple[float, ...]:
        info = self._header.tensors.get("rope_freqs.weight")
        if info is None:
            return ()
        values = torch.empty(info.shape)
        self._dequantize(info, values)
        return tuple(values.tolist())

    def _dequantize(self, info: TensorInfo, out: Tensor) -> None:
        """Fills `out`, of the tensor's shape."""
        rows = out.view(-1, info.shape[-1])
        for first, piece in self._pieces(info):
            rows[first : first + len(piece)] = piece

    def _pieces(self, info: TensorInfo) -> Iterator[tuple[int, Tensor]]:
        kind = gguf.GGMLQuantizationType(info.ggml_type)
        width, all_rows = info.shape[-1], math.prod(info.shape[:-1])
        row_bytes = tensor_bytes(TensorInfo(info.name, (width,), info.ggml_type, 0))
        step = max(1, _CHUNK_VALUES // width)
        for first in range(0, all_rows, step):
            count = min(step, all_rows - first)
            start = info.offset + first * row_bytes
            stored = np.frombuffer(self._data, np.uint8, count * row_bytes, start)
            values = gguf.quants.dequantize(stored.reshape(count, row_bytes), kind)
            # A copy where the values still lie in the mapping, which is read-only.
            yield first, torch.from_numpy(np.require(values, requirements="W"))
            del stored, values
            # All of the file: the kernel maps more around what is read.
            self._data.madvise(mmap.MADV_DONTNEED)


def dequantizable() -> frozenset[int]:
    """The ggml types that the gguf package turns into numbers."""
    plain = {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16}
    return frozenset(int(kind) for kind in plain | gguf.quants._type_traits.keys())


def tensor_bytes(info: TensorInfo) -> int:
    """Bytes that a tensor takes in the file."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(info.ggml_type)]
    values = 1
    for size in info.shape:
        values *= size
    return int(values // block * block_bytes)
