"""Finds stop strings in text that arrives in pieces.

Knows no tokens. Text that is not to be searched (that of the first `min_tokens` tokens) is
simply not pushed.
"""

from collections.abc import Sequence


class StopMatcher:
    """Passes text on up to the first stop string.

    The stop string that begins earliest in the whole text ends it, however the text was cut
    into pieces; of two that begin at the same place, the shorter one. What comes before it is
    passed on; the stop string and what follows never are. Held back is only what may still
    turn out to be the beginning of a stop string.

    Takes a few steps per character and stop string. Not thread-safe: one stream's own.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string."""
        if "" in stops:
            raise ValueError("a stop string is empty")
        self._searches = [_Search(stop) for stop in dict.fromkeys(stops)]
        self._held = ""
        self._read = 0
        self._shown = 0
        self._open_at = 0
        self._found: tuple[int, str] | None = None
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text; None while none did."""
        return self._matched

    def push(self, text: str) -> str:
        """Takes more text and returns what may be shown; nothing once a stop string matched."""
        if self._matched is not None:
            return ""
        if not self._searches:
            return text
        self._held += text
        for character in text:
            self._step(character)
            if self._found is not None and self._open_at >= self._found[0]:
                return self._end(*self._found)
        return self._release(self._open_at)

    def finish(self) -> str:
        """The text has ended: returns what was held back, up to a stop string if one is there.

        `matched` may become set here: a stop string was complete while another one that
        begins before it could still have been.
        """
        if self._matched is not None:
            return ""
        if self._found is not None:
            return self._end(*self._found)
        return self._release(self._read)

    def _step(self, character: str) -> None:
        """Reads one character: `_found` is the earliest whole stop string, `_open_at` the
        earliest place where an unfinished one may begin."""
        self._read += 1
        longest_open = 0
        for search in self._searches:
            if search.step(character):
                start = self._read - len(search.stop)
                if self._found is None or start < self._found[0]:
                    self._found = (start, search.stop)
            longest_open = max(longest_open, search.open)
        self._open_at = self._read - longest_open

    def _end(self, start: int, stop: str) -> str:
        self._matched = stop
        return self._release(start)

    def _release(self, end: int) -> str:
        """Gives out what is held of the text before `end`, counted from the text's start."""
        count = end - self._shown
        text, self._held = self._held[:count], self._held[count:]
        self._shown = end
        return text


class _Search:
    """Looks for one stop string, a character at a time, never going back (Knuth-Morris-Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.open = 0
        """Length of the longest end of the text that is an unfinished beginning of `stop`."""
        self._borders = _borders(stop)

    def step(self, character: str) -> bool:
        """Reads a character; True where `stop` ends with it."""
        while self.open and self.stop[self.open] != character:
            self.open = self._borders[self.open]
        if self.stop[self.open] == character:
            self.open += 1
        if self.open == len(self.stop):
            self.open = self._borders[self.open]
            return True
        return False


def _borders(pattern: str) -> list[int]:
    """For each length of a beginning of `pattern`: its longest proper end that also begins it."""
    borders = [0, 0]
    border = 0
    for character in pattern[1:]:
        while border and pattern[border] != character:
            border = borders[border]
        if pattern[border] == character:
            border += 1
        borders.append(border)
    return borders
