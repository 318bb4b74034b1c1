"""Where a JSON object ends in a text that is still coming."""

import re

_STOPS = re.compile(r'[{}\[\]"]')
_IN_STRING = re.compile(r'["\\]')


class ObjectScan:
    """Looks for the end of an object; goes on where it was when it is asked again."""

    def __init__(self, depth: int = 0) -> None:
        """`depth`: objects and lists that are open where the text begins."""
        self._at = 0
        self._depth = depth
        self._in_string = False

    def end(self, text: str) -> int | None:
        """Where the object that `text` begins with is over; None: not yet. `text` is that of
        the last call and more."""
        while True:
            stops = _IN_STRING if self._in_string else _STOPS
            found = stops.search(text, self._at)
            if found is None:
                self._at = len(text)
                return None
            character = found.group()
            if character == "\\":
                if found.end() == len(text):
                    self._at = found.start()
                    return None
                self._at = found.end() + 1
                continue
            self._at = found.end()
            if character == '"':
                self._in_string = not self._in_string
            elif character in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return self._at

    @property
    def seen(self) -> int:
        """How much of the text was looked at."""
        return self._at

    def moved(self) -> None:
        """What was seen is gone: the next text begins behind it."""
        self._at = 0
