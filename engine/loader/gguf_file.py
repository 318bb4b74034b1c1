"""A GGUF file: one file with settings and, mostly, quantized tensors.

Weights are dequantized while they are read, a few million values at a time, from a mapping
of the file. What GGUF stores otherwise than Hugging Face does is undone here: Llama's
query and key rows are permuted, and Gemma's norms come with one added.
"""

import hashlib
import mmap
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from baton.gguf import GGUFError, TensorInfo, read_header
from engine.loader.checkpoint import SAMPLED_BYTES
from engine.loader.errors import LoadError
from engine.loader.gguf_config import read_config

_CHUNK_VALUES = 4 << 20
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORM_NAMES = {
    "llama": {"post_attention_layernorm": "ffn_norm"},
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}


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
        module, _, kind = name.rpartition(".")
        if module in _NAMES:
            return f"{_NAMES[module]}.{kind}"
        _, _, layer, part = module.split(".", 3)
        stored = _BLOCK_NAMES.get(part) or _NORM_NAMES[self.config.architecture][part]
        return f"blk.{layer}.{stored}.{kind}"

    def stored_bytes(self, name: str) -> int:
        return tensor_bytes(self._info(name))

    def read(self, name: str, out: Tensor) -> None:
        self._dequantize(self._info(name), out)
        module = name.rpartition(".")[0]
        if self.config.architecture == "llama" and module.endswith(("q_proj", "k_proj")):
            heads = self.config.heads if module.endswith("q_proj") else self.config.kv_heads
            pairs = out.view(heads, self.config.head_dim // 2, 2, -1)
            out.copy_(pairs.transpose(1, 2).reshape(out.shape))
        if self.config.architecture == "gemma3" and module.endswith("norm"):
            exact = torch.empty(out.shape)
            self._dequantize(self._info(name), exact)
            out.copy_(exact - 1.0)

    def digest(self) -> str:
        start = min((t.offset for t in self._header.tensors.values()), default=len(self._data))
        hasher = hashlib.sha256(self._data[:start])
        for info in self._header.tensors.values():
            end = info.offset + tensor_bytes(info)
            hasher.update(self._data[info.offset : min(end, info.offset + SAMPLED_BYTES)])
            hasher.update(self._data[max(info.offset, end - SAMPLED_BYTES) : end])
        return hasher.hexdigest()

    def close(self) -> None:
        self._data.close()
        self._file.close()

    def _info(self, name: str) -> TensorInfo:
        stored = self.stored_name(name)
        info = self._header.tensors.get(stored)
        if info is None:
            raise LoadError(self._path, f"tensor {stored} is missing")
        return info

    def _rope_divisors(self) -> tuple[float, ...]:
        info = self._header.tensors.get("rope_freqs.weight")
        if info is None:
            return ()
        values = torch.empty(info.shape)
        self._dequantize(info, values)
        return tuple(values.tolist())

    def _dequantize(self, info: TensorInfo, out: Tensor) -> None:
        """Fills `out`, of the tensor's shape, by whole rows."""
        kind = gguf.GGMLQuantizationType(info.ggml_type)
        row_values = info.shape[-1]
        row_bytes = tensor_bytes(TensorInfo(info.name, (row_values,), info.ggml_type, 0))
        rows = out.view(-1, row_values)
        step = max(1, _CHUNK_VALUES // row_values)
        for first in range(0, rows.shape[0], step):
            count = min(step, rows.shape[0] - first)
            stored = np.frombuffer(
                self._data, np.uint8, count * row_bytes, info.offset + first * row_bytes
            ).reshape(count, row_bytes)
            values = gguf.quants.dequantize(stored, kind)
            # A copy where the values still lie in the mapping, which is read-only.
            rows[first : first + count] = torch.from_numpy(np.require(values, requirements="W"))
            del stored, values


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
