"""What each token id adds to a text, read off a tokenizer's own decoder.

Two families cover the models served: byte-level tokenizers, where a token is some bytes, and
SentencePiece-like ones, where a token is text or, where the vocabulary lacks a character, one
byte of it. A decoder of another shape is refused rather than guessed at.

Knows no streams: putting pieces together is `detokenizer`.
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from services.router.text import byte_alphabet
from services.router.text.errors import TextModelError

Piece = bytes | str
"""Text, even if empty, or bytes that may be part of a code point."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NO_PIECE = b""
"""Of what is not decoded at all: unlike an empty text, it does not end a run of bytes."""


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


class Pieces:
    """The piece of every token id. Thread-safe: entries are only ever added."""

    def __init__(self, tokenizer: Tokenizer, skipped: Collection[int]) -> None:
        """Raises TextModelError for a decoder that is not supported.

        `skipped` are the special tokens' ids, which add nothing to a text.
        """
        self.rule = decoder_rule(tokenizer)
        self._tokenizer = tokenizer
        self._convert: Callable[[str], Piece] = (
            byte_alphabet.read if self.rule.byte_level else self._text_or_byte
        )
        self._known: dict[int, Piece] = dict.fromkeys(skipped, _NO_PIECE)

    def of(self, token_id: int) -> Piece:
        """What `token_id` adds; no bytes for special tokens and ids beyond the vocabulary."""
        piece = self._known.get(token_id)
        if piece is None:
            token = self._tokenizer.id_to_token(token_id)
            piece = _NO_PIECE if token is None else self._convert(token)
            self._known[token_id] = piece
        return piece

    def _text_or_byte(self, token: str) -> Piece:
        for pattern, content in self.rule.replacements:
            token = token.replace(pattern, content)
        if self.rule.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return self.rule.separator + token


def decoder_rule(tokenizer: Tokenizer) -> DecoderRule:
    """Reads the rule off `tokenizer`'s decoder. Raises TextModelError where it is another kind."""
    if tokenizer.decoder is None:
        return DecoderRule(separator=" ", stripped=" ", stripped_most=1)
    config: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    steps: list[dict[str, Any]] = config.get("decoders", [config])
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return DecoderRule(byte_level=True)
    shape = re.fullmatch(
        r"(Replace )*(ByteFallback )?Fuse (Strip )?", "".join(f"{k} " for k in kinds)
    )
    literal = all("String" in step["pattern"] for step in steps if step["type"] == "Replace")
    strip: dict[str, Any] = {"content": "", "start": 0, "stop": 0}
    if kinds[-1:] == ["Strip"]:
        strip = steps[-1]
    if shape is None or not literal or strip["stop"]:
        raise TextModelError(f"its decoder is not supported: {json.dumps(config)[:300]}")
    return DecoderRule(
        replacements=tuple(
            (step["pattern"]["String"], step["content"])
            for step in steps
            if step["type"] == "Replace"
        ),
        byte_fallback="ByteFallback" in kinds,
        stripped=strip["content"],
        stripped_most=strip["start"],
    )
