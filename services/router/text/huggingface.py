"""Reads tokenizer and chat template of a Hugging Face directory.

tokenizer.json holds the tokenizer whole. tokenizer_config.json adds the names of special
tokens, whether bos and eos are added, and the chat template, which chat_template.jinja
overrides.

Knows no requests; what the template means is `template`'s.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from services.router.text.errors import TextModelError

_SPECIAL_NAMES = (
    "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token",
)  # fmt: skip
_EXTRA_NAMES = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class HuggingFaceTokenizer:
    """A tokenizer as a directory describes it."""

    tokenizer: Tokenizer
    special_tokens: dict[str, str]
    """By name, such as bos_token."""
    add_bos: bool | None
    """None: the tokenizer's own post-processor decides about bos and eos."""
    add_eos: bool | None
    chat_template: str | None


def read(directory: Path) -> HuggingFaceTokenizer:
    """Reads `directory`. Raises TextModelError, which names the file."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TextModelError(f"{directory} has no tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise TextModelError(f"{path}: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _json(directory / "special_tokens_map.json") | _json(
        directory / "tokenizer_config.json"
    )
    special = {
        name: text for name in _SPECIAL_NAMES if (text := _content(config.get(name))) is not None
    }
    _mark_special(tokenizer, [*special.values(), *_extra_tokens(config)])
    flags = [config.get("add_bos_token"), config.get("add_eos_token")]
    explicit = tokenizer.post_processor is None or flags != [None, None]
    return HuggingFaceTokenizer(
        tokenizer,
        special,
        bool(flags[0]) if explicit else None,
        bool(flags[1]) if explicit else None,
        _chat_template(directory, config.get("chat_template")),
    )


def _json(path: Path) -> dict[str, Any]:
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


def _extra_tokens(config: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for name in _EXTRA_NAMES:
        values = config.get(name) or []
        items = values.values() if isinstance(values, dict) else values
        found.extend(text for item in items if (text := _content(item)) is not None)
    return found


def _mark_special(tokenizer: Tokenizer, tokens: list[str]) -> None:
    added = tokenizer.get_added_tokens_decoder()
    already = {token.content for token in added.values() if token.special}
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token in dict.fromkeys(tokens)
            if token not in already and tokenizer.token_to_id(token) is not None
        ]
    )


def _chat_template(directory: Path, configured: Any) -> str | None:
    """The template's source: the file's, the configured one, or the one named "default"."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    if isinstance(configured, list):
        named = [item for item in configured if isinstance(item, dict)]
        configured = next((i.get("template") for i in named if i.get("name") == "default"), None)
    return configured if isinstance(configured, str) else None
