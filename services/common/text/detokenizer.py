"""Turns a stream of token ids into text, piece by piece, as soon as the text is certain.

The rule: all that `push` and `finish` return, joined, is the tokenizer's own decode of prompt
and output together (special tokens skipped), less the longest beginning that it shares with
the tokenizer's decode of the prompt alone. So a leading space that the tokenizer strips from a
text is not stripped in the middle of one, and a code point that the prompt began and the
output completes belongs to the output.

Text is certain when no later token can change it. In byte-level tokenizers a code point is
certain when it is complete. In SentencePiece-like ones a run of byte tokens decodes as a
whole (one bad byte makes each of them U+FFFD), so a run is given out where it ends.

Each token is looked at once, whatever the bytes: no stream gets slower as it gets longer.
Knows no stop strings (`stops`).
"""

import codecs
from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from services.common.text.pieces import DecoderRule, Piece, Pieces

_LONGEST_UNFINISHED = 3


class Detokenizer(Protocol):
    """One stream's text. Not thread-safe."""

    def push(self, token_id: int) -> str:
        """Takes the next token; returns the text that became certain, in whole code points."""

    def finish(self) -> str:
        """Returns what was held back: an unfinished code point as the tokenizer decodes it.

        Called once, after the last push.
        """


def detokenizer(pieces: Pieces, prompt_ids: Sequence[int]) -> Detokenizer:
    """A detokenizer of the kind that `pieces` asks for, at the end of `prompt_ids`."""
    if pieces.rule.byte_level:
        return ByteLevelDetokenizer(pieces, prompt_ids)
    return FallbackDetokenizer(pieces, prompt_ids)


class ByteLevelDetokenizer:
    """For tokenizers whose tokens are bytes."""

    def __init__(self, pieces: Pieces, prompt_ids: Sequence[int]) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        tail = _last_bytes(pieces, prompt_ids, _LONGEST_UNFINISHED)
        self._utf8.decode(tail)
        unfinished, _ = self._utf8.getstate()
        self._shown = _Shown(unfinished.decode("utf-8", "replace"))

    def push(self, token_id: int) -> str:
        """As `Detokenizer.push`."""
        return self._shown.beyond(self._utf8.decode(_as_bytes(self._pieces.of(token_id))))

    def finish(self) -> str:
        """As `Detokenizer.finish`."""
        return self._shown.beyond(self._utf8.decode(b"", final=True))


class FallbackDetokenizer:
    """For tokenizers whose tokens are text, or single bytes where a character has no token."""

    def __init__(self, pieces: Pieces, prompt_ids: Sequence[int]) -> None:
        self._pieces = pieces
        self._begun = False
        """A token has come that is part of the text."""
        self._run = bytearray()
        self._run_is_first = False
        self._start = _Start(pieces.rule)
        self._shown = _Shown("")
        self._skip(prompt_ids)
        prompt_end = _Start(pieces.rule, self._start.left).stripped(self._run_text())
        self._shown = _Shown(prompt_end)

    def push(self, token_id: int) -> str:
        """As `Detokenizer.push`."""
        piece = self._pieces.of(token_id) if self._begun else self._pieces.first(token_id)
        if piece is None:
            return ""
        if isinstance(piece, bytes):
            self._run_is_first |= not self._begun
            self._begun = True
            self._run += piece
            return ""
        self._begun = True
        return self._emit(piece)

    def finish(self) -> str:
        """As `Detokenizer.finish`."""
        return self._emit("")

    def _skip(self, prompt_ids: Sequence[int]) -> None:
        """Brings the state to the prompt's end, reading no more of it than it depends on."""
        read = 0
        while not self._begun or self._run or self._start.left:
            if read == len(prompt_ids):
                return
            self.push(prompt_ids[read])
            read += 1
        backwards = map(self._pieces.of, reversed(prompt_ids[read:]))
        run = takewhile(lambda piece: piece is None or isinstance(piece, bytes), backwards)
        self._run += b"".join(reversed([_as_bytes(piece) for piece in run]))

    def _emit(self, piece: str) -> str:
        text = self._run_text() + piece
        self._run.clear()
        self._run_is_first = False
        return self._shown.beyond(self._start.stripped(text))

    def _run_text(self) -> str:
        return self._pieces.run(bytes(self._run), first=self._run_is_first)


class _Start:
    """Strips what a text loses at its very beginning."""

    def __init__(self, rule: DecoderRule, left: int | None = None) -> None:
        self._character = rule.stripped
        self.left = rule.stripped_most if left is None else left
        """How many characters may still be stripped; 0 once the text has begun."""

    def stripped(self, text: str) -> str:
        if not self.left or not text:
            return text
        cut = 0
        while cut < min(self.left, len(text)) and text[cut] == self._character:
            cut += 1
        self.left = self.left - cut if cut == len(text) else 0
        return text[cut:]


class _Shown:
    """Takes from a text's beginning what the prompt's own decode ended with."""

    def __init__(self, prompt_end: str) -> None:
        self._rest = prompt_end

    def beyond(self, text: str) -> str:
        if not self._rest or not text:
            return text
        both = 0
        while both < min(len(text), len(self._rest)) and text[both] == self._rest[both]:
            both += 1
        self._rest = self._rest[both:] if both == len(text) else ""
        return text[both:]


def _last_bytes(pieces: Pieces, ids: Sequence[int], least: int) -> bytes:
    """The end of what `ids` decode to: at least `least` bytes, where there are as many."""
    found: list[bytes] = []
    size = 0
    for token_id in reversed(ids):
        if size >= least:
            break
        found.append(_as_bytes(pieces.of(token_id)))
        size += len(found[-1])
    return b"".join(reversed(found))


def _as_bytes(piece: Piece | None) -> bytes:
    if isinstance(piece, str):
        return piece.encode("utf-8")
    return piece or b""
