"""What each token id adds to a text, read off a tokenizer's own decoder.

Two families cover the models served: byte-level tokenizers, where a token is some bytes, and
SentencePiece-like ones, where a token is text or, where the vocabulary lacks a character, one
byte of it. A decoder of another shape is refused rather than guessed at.

Knows no streams: putting pieces together is `detokenizer`.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from services.common.text import byte_alphabet
from services.common.text.errors import TextModelError

_REPLACEMENT = "\ufffd"

Piece = bytes | str
"""Text, or bytes that may be part of a code point."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SHAPE = re.compile(
    r"(Replace )*"
    r"((ByteFallback )?(Fuse (Strip )?)?|(ByteFallback )?Metaspace (Fuse )?"
    r"|Metaspace ByteFallback (Fuse )?)"
)


@dataclass(frozen=True, slots=True)
class DecoderRule:
    """How a tokenizer's decoder turns tokens into text."""

    byte_level: bool = False
    """Tokens are bytes written in the byte alphabet."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Substitutions in each token's text, in order."""
    byte_fallback: bool = False
    """Tokens such as <0x0A> are single bytes."""
    separator: str = ""
    """Comes before each token; the first one's is among the stripped."""
    stripped: str = ""
    """Character of which a text loses up to `stripped_most` at its very beginning."""
    stripped_most: int = 0
    space_mark: str = ""
    """Character that means a space, after `replacements`; empty: there is none."""
    first_space: str = " "
    """What `space_mark` means in a text's first token, all over it."""
    marks_in_runs: bool = False
    """`space_mark` counts in what byte tokens spell too."""


class Pieces:
    """The piece of every token id. Thread-safe: entries are only ever added."""

    def __init__(self, tokenizer: Tokenizer, skipped: Collection[int]) -> None:
        """Raises TextModelError for a decoder that is not supported.

        `skipped` are the special tokens' ids, which add nothing to a text.
        """
        self.rule = decoder_rule(tokenizer)
        self._tokenizer = tokenizer
        self._convert: Callable[[str], Piece] = (
            byte_alphabet.read if self.rule.byte_level else partial(text_or_byte, self.rule)
        )
        self._known: dict[int, Piece | None] = dict.fromkeys(skipped, None)

    def of(self, token_id: int) -> Piece | None:
        """What `token_id` adds anywhere but first in a text.

        None for special tokens and ids beyond the vocabulary: a text is what it would be
        without them.
        """
        try:
            return self._known[token_id]
        except KeyError:
            token = self._tokenizer.id_to_token(token_id)
            piece = None if token is None else self._convert(token)
            self._known[token_id] = piece
            return piece

    def first(self, token_id: int) -> Piece | None:
        """What `token_id` adds as the first token of a text; None as for `of`."""
        piece = self.of(token_id)
        if not self.rule.space_mark or not isinstance(piece, str):
            return piece
        return _replaced(self.rule, str(self._tokenizer.id_to_token(token_id)), first=True)

    def run(self, data: bytes, *, first: bool) -> str:
        """The text of a whole run of byte tokens; `first`: nothing comes before it."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return _REPLACEMENT * len(data)
        if not self.rule.marks_in_runs:
            return text
        return text.replace(self.rule.space_mark, self.rule.first_space if first else " ")


def text_or_byte(rule: DecoderRule, token: str) -> Piece:
    """What `token`, of a vocabulary that is not byte-level, adds anywhere but first in a text."""
    text = _replaced(rule, token, first=False)
    if rule.byte_fallback and text.startswith("<0x") and (match := _BYTE_TOKEN.fullmatch(text)):
        return bytes([int(match[1], 16)])
    return rule.separator + text


def _replaced(rule: DecoderRule, token: str, *, first: bool) -> str:
    for pattern, content in rule.replacements:
        token = token.replace(pattern, content)
    if not rule.space_mark:
        return token
    return token.replace(rule.space_mark, rule.first_space if first else " ")


def decoder_rule(tokenizer: Tokenizer) -> DecoderRule:
    """Reads the rule off `tokenizer`'s decoder. Raises TextModelError where it is another kind."""
    decoder = tokenizer.decoder
    return rule_of(None if decoder is None else json.loads(decoder.__getstate__()))


def rule_of(config: dict[str, Any] | None) -> DecoderRule:
    """The rule of a decoder as tokenizer.json writes it, None where it has none.

    Raises TextModelError where it is another kind.
    """
    if config is None:
        return DecoderRule(separator=" ", stripped=" ", stripped_most=1)
    steps = list(_steps(config))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return DecoderRule(byte_level=True)
    by_kind = {step["type"]: step for step in steps}
    strip = by_kind.get("Strip", {"content": "", "start": 0, "stop": 0})
    metaspace = by_kind.get("Metaspace", {"replacement": "", "prepend_scheme": "never"})
    replacements = [step for step in steps if step["type"] == "Replace"]
    literal = all("String" in step["pattern"] for step in replacements)
    if not _SHAPE.fullmatch("".join(f"{k} " for k in kinds)) or not literal or strip["stop"]:
        raise TextModelError(
            f"its decoder is not supported: {', '.join(kinds)}: {json.dumps(config)[:300]}"
        )
    return DecoderRule(
        replacements=tuple((step["pattern"]["String"], step["content"]) for step in replacements),
        byte_fallback="ByteFallback" in kinds,
        stripped=strip["content"],
        stripped_most=strip["start"],
        space_mark=metaspace["replacement"],
        first_space=" " if metaspace["prepend_scheme"] == "never" else "",
        marks_in_runs="ByteFallback Metaspace" in " ".join(kinds),
    )


def _steps(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The decoders of `config` in order, sequences taken apart."""
    if config["type"] != "Sequence":
        yield config
        return
    for step in config["decoders"]:
        yield from _steps(step)
