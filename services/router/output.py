"""Tokens to text, up to the first stop string.

Knows no workers: whether tokens come from a prefill or a decode worker, and how often the
stream was resumed, can't be seen here, so a stop string across a handoff is like any other.
"""

from collections.abc import Sequence
from typing import Protocol

from services.common.text import StopMatcher
from services.router.ending import Ending
from services.router.events import SampledToken


class TokenText(Protocol):
    """Turns token ids into text; `services.common.text.Detokenizer` is one."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class Output:
    """One choice's text so far. Not thread-safe."""

    def __init__(self, detokenizer: TokenText, stops: Sequence[str], ending: Ending) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._matcher = StopMatcher(stops)
        self._ending = ending
        self._tokens = 0
        self._held = ""
        self._finished = False

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the output; None while none did."""
        return self._matcher.matched

    def push(self, tokens: Sequence[SampledToken]) -> str:
        """Takes the tokens of a step; returns what can be shown by now."""
        return "".join([self._text_of(token) for token in tokens])

    def finish(self) -> str:
        """The rest of the text, once no token will come; nothing the second time."""
        if self.stop_string is not None or self._finished:
            return ""
        self._finished = True
        return self._search(self._detokenizer.finish()) + self._matcher.finish()

    def _text_of(self, token: SampledToken) -> str:
        index = self._tokens
        self._tokens += 1
        if self.stop_string is not None or self._ending.is_end(token, index):
            return ""
        piece = self._detokenizer.push(token.token_id)
        return self._search(piece) if piece else ""

    def _search(self, piece: str) -> str:
        """Passes text through the stop strings. One that is complete before it may end the
        output is text like any other, and the search begins again behind it."""
        held = self._held + piece
        shown = self._matcher.push(piece)
        self._held = held[len(shown) :]
        if self.stop_string is None or self._ending.may_end(self._tokens - 1):
            return shown
        self._matcher, self._held = StopMatcher(self._stops), ""
        return held
