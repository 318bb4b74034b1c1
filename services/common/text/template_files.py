"""Finds a model's chat template among the places where models keep one.

A directory may name several templates; conversations are written with the one called
"default", which is what a single unnamed one is. Files come before tokenizer_config.json, all
of them: a directory with any template file has none but those.

Knows no template's meaning (`template`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.common.text.errors import TextModelError

_DEFAULT = "default"
_FILE = "chat_template.jinja"
_FOLDERS = ("chat_templates", "additional_chat_templates")


def of_directory(directory: Path, configured: Any) -> str | None:
    """The template's source; `configured` is tokenizer_config.json's chat_template.

    None where there is none, or none is called "default". Raises TextModelError for a file
    that is not text.
    """
    paths = [path for folder in _FOLDERS for path in sorted((directory / folder).glob("*.jinja"))]
    files = {path.stem: path for path in paths}
    single = directory / _FILE
    if single.is_file():
        files.setdefault(_DEFAULT, single)
    if files:
        return text_of(files[_DEFAULT]) if _DEFAULT in files else None
    if isinstance(configured, list):
        named = {item.get("name"): item.get("template") for item in configured if _is_named(item)}
        configured = named.get(_DEFAULT)
    elif isinstance(configured, dict):
        configured = configured.get(_DEFAULT)
    return configured if isinstance(configured, str) else None


def of_gguf(metadata: Mapping[str, Any]) -> str | None:
    """The template's source in a GGUF file's metadata, where it has one."""
    for key in ("tokenizer.chat_template", f"tokenizer.chat_template.{_DEFAULT}"):
        source = metadata.get(key)
        if isinstance(source, str):
            return source
    return None


def _is_named(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("name"), str)


def text_of(path: Path) -> str:
    """What is in the file at `path`. Raises TextModelError where that is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TextModelError(f"{path}: {error}") from None
