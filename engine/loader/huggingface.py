"""A Hugging Face directory: config.json and safetensors, in one file or in shards."""

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, uint8

from engine.loader.checkpoint import SAMPLED_BYTES
from engine.loader.errors import LoadError
from engine.loader.huggingface_config import read_config

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class HuggingFaceCheckpoint:
    """Implements `engine.loader.checkpoint.Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        """The open file of each tensor."""
        settings = read_json(path / "config.json")
        generation = path / "generation_config.json"
        self.config = read_config(
            path / "config.json", settings, read_json(generation) if generation.exists() else {}
        )
        self._settings = settings
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
            self._open_file(self._path / name)
        for tensor, name in (places or {}).items():
            if tensor not in self._files:
                raise LoadError(self._path / name, f"tensor {tensor} is missing")

    def _open_file(self, file: Path) -> None:
        try:
            opened = self._stack.enter_context(safe_open(file, framework="pt", device="cpu"))
            self._files.update(dict.fromkeys(opened.keys(), opened))
        except FileNotFoundError:
            raise LoadError(file, "is named by the index, but there is no such file") from None
        except (SafetensorError, OSError) as error:
            raise LoadError(file, f"truncated or damaged: {error}") from error

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def stored_name(self, name: str) -> str:
        return name

    def stored_bytes(self, name: str) -> int:
        size = _ITEM_BYTES.get(self._slice(name).get_dtype(), 1)
        for dimension in self.shape(name):
            size *= dimension
        return size

    def read(self, name: str, out: Tensor) -> None:
        stored = self._slice(name).get_dtype()
        if stored not in _ITEM_BYTES:
            raise LoadError(self._path, f"tensor {name} has type {stored}, which is not supported")
        out.copy_(self._files[name].get_tensor(name))

    def digest(self) -> str:
        hasher = hashlib.sha256(json.dumps(self._settings, sort_keys=True).encode())
        for name in sorted(self._files):
            piece = self._slice(name)
            hasher.update(f"{name} {piece.get_dtype()} {piece.get_shape()}\n".encode())
            data = self._files[name].get_tensor(name).reshape(-1).view(uint8)
            hasher.update(data[:SAMPLED_BYTES].numpy().tobytes())
            hasher.update(data[-SAMPLED_BYTES:].numpy().tobytes())
        return hasher.hexdigest()

    def close(self) -> None:
        self._stack.close()

    def _slice(self, name: str) -> Any:
        if name not in self._files:
            raise LoadError(self._path, f"tensor {name} is missing")
        return self._files[name].get_slice(name)


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
