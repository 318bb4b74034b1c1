"""Reads the header of a GGUF file: its metadata, and where each tensor lies.

Follows the GGUF specification, versions 2 and 3, little-endian. Strings and number arrays
are read straight into Python lists, which takes a quarter of a second where a vocabulary has
262,144 entries. Tensor data is not touched: `TensorInfo` gives offsets, and what the bytes mean is
up to the reader (`engine.loader`).

Imports only the standard library; knows nothing of models or tokenizers.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q").unpack_from
_MAX_ENTRIES = 1 << 28


class GGUFError(ValueError):
    """The file is not a GGUF file that can be read; the message says what is wrong where."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies, and what it is."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as torch has it (the file stores the reverse)."""
    ggml_type: int
    """Number of the ggml quantization type."""
    offset: int
    """First byte of the data, from the start of the file."""


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """All of a GGUF file but its tensor data."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    file_bytes: int


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int, what: str) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise GGUFError(
                f"truncated: {what} needs {size} bytes at offset {self.at}, "
                f"and the file ends at {len(self.data)}"
            )
        piece = self.data[self.at : self.at + size]
        self.at += size
        return piece

    def scalar(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def string(self, what: str) -> str:
        return self.take(self.scalar("Q", what), what).decode("utf-8", errors="replace")

    def strings(self, count: int, what: str) -> list[str]:
        """As `string`, `count` times; written out since vocabularies have many."""
        found: list[str] = []
        data, at, end = self.data, self.at, len(self.data)
        for _ in range(count):
            start = at + 8
            size = _LENGTH(data, at)[0] if start <= end else end
            if start + size > end:
                self.at = at
                self.string(what)
            at = start + size
            found.append(data[start:at].decode("utf-8", errors="replace"))
        self.at = at
        return found

    def value(self, kind: int, what: str) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what)
        raise GGUFError(f"{what}: unknown value type {kind}")

    def array(self, what: str) -> list[Any]:
        kind = self.scalar("I", what)
        count = self.scalar("Q", what)
        if count > _MAX_ENTRIES:
            raise GGUFError(f"{what}: {count} entries are more than {_MAX_ENTRIES}")
        if kind in _SCALARS:
            code = _SCALARS[kind]
            return list(
                struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code), what))
            )
        if kind == _STRING:
            return self.strings(count, what)
        return [self.value(kind, what) for _ in range(count)]


def is_gguf(path: Path) -> bool:
    """Whether the file at `path` starts as GGUF files do."""
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def read_header(path: Path) -> GGUFHeader:
    """Reads metadata and tensor places of the file at `path`.

    Raises GGUFError where it is not GGUF, is of another version, or ends too early.
    """
    size = os.path.getsize(path)
    if size < 24:
        raise GGUFError(f"{path}: truncated: {size} bytes are no GGUF file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _parse(path, _Cursor(data))
        except GGUFError as error:
            raise GGUFError(f"{path}: {error}") from None


def _parse(path: Path, cursor: _Cursor) -> GGUFHeader:
    if cursor.take(4, "magic") != MAGIC:
        raise GGUFError("not a GGUF file: it does not start with 'GGUF'")
    version = cursor.scalar("I", "version")
    if version not in (2, 3):
        raise GGUFError(f"GGUF version {version} is not supported (2 and 3 are)")
    tensor_count = cursor.scalar("Q", "tensor count")
    metadata_count = cursor.scalar("Q", "metadata count")
    metadata: dict[str, Any] = {}
    for index in range(metadata_count):
        key = cursor.string(f"key of metadata entry {index}")
        metadata[key] = cursor.value(cursor.scalar("I", key), key)
    raw: list[tuple[str, tuple[int, ...], int, int]] = []
    for index in range(tensor_count):
        name = cursor.string(f"name of tensor {index}")
        rank = cursor.scalar("I", name)
        if rank > 8:
            raise GGUFError(f"tensor {name}: rank {rank} is more than 8")
        dims = [cursor.scalar("Q", name) for _ in range(rank)]
        raw.append(
            (name, tuple(reversed(dims)), cursor.scalar("I", name), cursor.scalar("Q", name))
        )
    alignment = int(metadata.get("general.alignment", 32))
    if alignment <= 0:
        raise GGUFError(f"general.alignment is {alignment}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {
        name: TensorInfo(name, shape, ggml_type, start + offset)
        for name, shape, ggml_type, offset in raw
    }
    return GGUFHeader(path, metadata, tensors, len(cursor.data))
