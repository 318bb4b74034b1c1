"""What the text of a chat's choice says: content, and calls of tools where there are any."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from baton.events import ToolFormat
from services.gateway.tool_calls import Arguments, CallBegun, Content, Part, ToolCallParser

Delta = dict[str, Any]
"""A part of an assistant's message, as streams bring it."""


class Speech(Protocol):
    """One choice's text as it comes, made parts of an assistant's message."""

    def add(self, text: str) -> list[Delta]:
        """What more text brings."""
        ...

    def end(self) -> tuple[list[Delta], str | None]:
        """What was still held back, and the reason why it ended where the text tells one."""
        ...


MakeSpeech = Callable[[], Speech]


class Plain:
    """All of it is content."""

    def add(self, text: str) -> list[Delta]:
        """The text."""
        return [{"content": text}] if text else []

    def end(self) -> tuple[list[Delta], str | None]:
        """Nothing."""
        return [], None


class Calling:
    """Content, and calls in the model's own format."""

    def __init__(self, tool_format: ToolFormat, names: Collection[str], most: int | None) -> None:
        self._parser = ToolCallParser(tool_format, names, most)

    def add(self, text: str) -> list[Delta]:
        """Content and calls, as far as it is clear which they are."""
        return _deltas(self._parser.push(text))

    def end(self) -> tuple[list[Delta], str | None]:
        """The rest."""
        deltas = _deltas(self._parser.finish())
        return deltas, "tool_calls" if self._parser.called else None


def _deltas(parts: Iterable[Part]) -> list[Delta]:
    return [_delta(part) for part in parts]


def _delta(part: Part) -> Delta:
    match part:
        case Content(text):
            return {"content": text}
        case CallBegun(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
