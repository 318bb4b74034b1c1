"""A Hugging Face directory: config.json and safetensors, in one file or in shards."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.loader.checkpoint import SAMPLED_BYTES
from engine.loader.errors import LoadError
from engine.loader.float8 import Float8Scales, check_quantization
from engine.loader.huggingface_config import read_config
from engine.loader.safetensors_file import SafetensorsFile, StoredTensor

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class HuggingFaceCheckpoint:
    """Implements `engine.loader.checkpoint.Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()
        self._files: dict[str, SafetensorsFile] = {}
        """The open file of each tensor."""
        settings = read_json(path / "config.json")
        generation = path / "generation_config.json"
        self.config = read_config(
            path / "config.json", settings, read_json(generation) if generation.exists() else {}
        )
        self._settings = settings
        block_size = check_quantization(path / "config.json", settings)
        is_quantized = settings.get("quantization_config") is not None
        self._float8 = Float8Scales(path, self._files, block_size, required=is_quantized)
        try:
            self._open_files()
            self.total_bytes = sum(self.stored_bytes(name) for name in self._files)
        except BaseException:
            self.close()
            raise

    def _open_files(self) -> None:
        if (self._path / INDEX).exists():
            places = read_json(self._path / INDEX).get("weight_map")
            if not isinstance(places, dict):
                raise LoadError(self._path / INDEX, "weight_map is missing")
            for tensor, name in places.items():
                if not isinstance(name, str):
                    raise LoadError(self._path / INDEX, f"weight_map.{tensor} is {name!r}, no file")
        elif (self._path / SINGLE).exists():
            places = None
        else:
            raise LoadError(self._path, f"neither {SINGLE} nor {INDEX} is there")
        names = sorted(set(places.values())) if places is not None else [SINGLE]
        for name in names:
            opened = SafetensorsFile(self._path / name)
            self._stack.callback(opened.close)
            self._files.update(dict.fromkeys(opened.tensors, opened))
        for tensor, name in (places or {}).items():
            if tensor not in self._files:
                raise LoadError(self._path / name, f"tensor {tensor} is missing")

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored(name).shape

    def stored_name(self, name: str) -> str:
        # Of two tied tensors a file may hold either.
        if name == _EMBEDDING and self.config.tied and name not in self._files:
            return _HEAD
        return name

    def stored_bytes(self, name: str) -> int:
        stored = self._stored(name)
        return stored.end - stored.start

    def read(self, name: str, out: Tensor) -> None:
        rows = out.view(out.shape or (1,))
        for first, piece in self.pieces(name):
            rows[first : first + len(piece)].copy_(piece)

    def pieces(self, name: str) -> Iterator[tuple[int, Tensor]]:
        stored, place = self.stored_name(name), self._stored(name)
        scales = self._float8.of(stored, place.shape) if place.dtype == "F8_E4M3" else None
        for first, piece in self._files[stored].pieces(stored):
            yield first, piece if scales is None else scales.apply(first, piece)

    def digest(self) -> str:
        hasher = hashlib.sha256(json.dumps(self._settings, sort_keys=True).encode())
        for name in sorted(self._files):
            stored, file = self._stored(name), self._files[name]
            hasher.update(f"{name} {stored.dtype} {list(stored.shape)}\n".encode())
            middle = max(stored.start, stored.end - SAMPLED_BYTES)
            hasher.update(
                file.read_bytes(stored.start, min(stored.end, stored.start + SAMPLED_BYTES))
            )
            hasher.update(file.read_bytes(middle, stored.end))
        return hasher.hexdigest()

    def close(self) -> None:
        self._stack.close()

    def _stored(self, name: str) -> StoredTensor:
        stored = self.stored_name(name)
        if stored not in self._files:
            raise LoadError(self._path, f"tensor {name} is missing")
        return self._files[stored].tensors[stored]


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises LoadError."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LoadError(file, "there is no such file") from None
    except (OSError, ValueError) as error:
        raise LoadError(file, f"cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(file, "is not a JSON object")
    return value
