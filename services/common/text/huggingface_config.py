"""What the small files of a Hugging Face directory say about its tokens.

tokenizer_config.json and special_tokens_map.json name special tokens and list tokens that were
added later (added_tokens.json in older directories).

Knows no tokenizer.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from services.common.text.errors import TextModelError

_EXTRA_NAMES = ("additional_special_tokens", "extra_special_tokens")


def read_config(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json with special_tokens_map.json.

    Where both name a token the map counts, unless the configuration lists all added tokens,
    as newer ones do.
    """
    config = read_json(directory / "tokenizer_config.json")
    names = read_json(directory / "special_tokens_map.json")
    return names | config if "added_tokens_decoder" in config else config | names


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file at `path`, empty where there is no file. Raises TextModelError."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TextModelError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise TextModelError(f"{path}: is not a JSON object")
    return value


def _content(value: Any) -> str | None:
    """The text of a special token, which is a string or an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def named_tokens(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Special tokens with a name: bos_token and the like, image_token and the like."""
    named = [(name, value) for name, value in config.items() if name.endswith("_token")]
    extra = config.get("extra_special_tokens")
    for name, value in [*named, *(extra.items() if isinstance(extra, dict) else ())]:
        if (text := _content(value)) is not None:
            yield name, text


def extra_tokens(config: dict[str, Any]) -> list[str]:
    """Special tokens without a name. Raises TextModelError where they are no list."""
    found: list[str] = []
    for name in _EXTRA_NAMES:
        values = config.get(name) or []
        items = values.values() if isinstance(values, dict) else values
        if not isinstance(items, Iterable):
            raise TextModelError(f"tokenizer_config.json: {name} is {values!r}, not a list")
        found.extend(text for item in items if (text := _content(item)) is not None)
    return found


def listed_tokens(directory: Path, config: dict[str, Any]) -> dict[int, AddedToken]:
    """Tokens that were added later, by id. Raises TextModelError, which names the directory."""
    listed = config.get("added_tokens_decoder")
    try:
        if listed is not None:
            return {int(index): _added_token(fields) for index, fields in listed.items()}
        if (directory / "tokenizer.json").is_file():
            return {}
        added = read_json(directory / "added_tokens.json")
        return {int(index): AddedToken(content) for content, index in added.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TextModelError(f"{directory}: its added tokens can't be read: {error!r}") from None


def _added_token(fields: dict[str, Any]) -> AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(
        fields["content"], **{name: bool(fields[name]) for name in flags if name in fields}
    )
