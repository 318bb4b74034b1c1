"""The tokens of a Hugging Face directory, without a tokenizer built of them.

Says of each token what `huggingface` makes of it: its text, and whether it is special.
"""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.common.text import sentencepiece_file
from services.common.text.errors import TextModelError
from services.common.text.huggingface_config import (
    extra_tokens,
    listed_tokens,
    named_tokens,
    read_config,
)
from services.common.text.pieces import DecoderRule, rule_of
from services.common.text.sentencepiece import SPACE


@dataclass(slots=True)
class Tokens:
    """Tokens, and which of them are special."""

    texts: dict[int, str]
    """By id."""
    rule: DecoderRule
    special: set[int] = field(default_factory=set)

    def mark(self, texts: list[str]) -> None:
        """Makes those of `texts` special that are tokens."""
        wanted = set(texts)
        self.special.update(index for index, text in self.texts.items() if text in wanted)


def read(directory: Path) -> Tokens:
    """Reads `directory`. Raises TextModelError, which names the file."""
    config = read_config(directory)
    if (directory / "tokenizer.json").is_file():
        tokens = _of_json(directory / "tokenizer.json")
    else:
        tokens = _of_sentencepiece(directory / "tokenizer.model")
    for index, token in listed_tokens(directory, config).items():
        again = tokens.texts.get(index) == token.content and index in tokens.special
        tokens.texts[index] = token.content
        if token.special or again:
            tokens.special.add(index)
    tokens.mark([*(text for _, text in named_tokens(config)), *extra_tokens(config)])
    return tokens


def _of_json(path: Path) -> Tokens:
    try:
        with _without_collecting():
            state: dict[str, Any] = json.loads(path.read_bytes())
            vocab = state["model"]["vocab"]
        if isinstance(vocab, dict):
            texts = {index: text for text, index in vocab.items()}
        else:
            texts = {index: text for index, (text, _) in enumerate(vocab)}
        added = state.get("added_tokens") or []
        texts.update((token["id"], token["content"]) for token in added)
        special = {token["id"] for token in added if token["special"]}
        return Tokens(texts, rule_of(state.get("decoder")), special)
    except TextModelError as error:
        raise TextModelError(f"{path}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TextModelError(f"{path}: is no tokenizer: {error!r}") from None


def _of_sentencepiece(path: Path) -> Tokens:
    found = sentencepiece_file.read(path, prefix_every_part=True)
    rule = DecoderRule(replacements=((SPACE, " "),), byte_fallback=found.model.byte_fallback)
    tokens = Tokens(dict(enumerate(found.model.tokens)), rule)
    tokens.mark(found.special())
    return tokens


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Doesn't look for garbage meanwhile: among half a million new lists there is none, and
    looking takes longer than reading them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
