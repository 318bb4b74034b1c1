"""Finds calls of functions in the text of an output, as the text comes.

    text ──► content, and for each call: its name, then its arguments as they come

What a format's tags announce and what does not turn out to be a call is content, tags and all.
How the text is cut into pieces changes nothing but the pieces that come out. White space between
content and calls is dropped. Pure; knows no HTTP and no models.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto

from baton.events import ToolFormat
from services.gateway.json_scan import ObjectScan

_OPENING = {
    ToolFormat.HERMES: "<tool_call>",
    ToolFormat.MISTRAL: "[TOOL_CALLS]",
    ToolFormat.LLAMA: "<|python_tag|>",
}
_CLOSING = "</tool_call>"
_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a function."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments' text, of the call that began last."""

    index: int
    text: str


Part = Content | CallBegun | Arguments


class _State(Enum):
    START = auto()
    TEXT = auto()
    OPENED = auto()
    CALL = auto()
    ARGUMENTS = auto()
    REST = auto()
    AFTER = auto()
    DONE = auto()


def new_call_id() -> str:
    """An id for a call."""
    return f"call_{secrets.token_hex(12)}"


class ToolCallParser:
    """One output's text so far. Not thread-safe."""

    def __init__(
        self,
        tool_format: ToolFormat,
        names: Collection[str],
        most: int | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`names` are those of the functions there are, `most` the calls that are put out;
        further ones are dropped."""
        self._format = tool_format
        self._opening = _OPENING.get(tool_format, "")
        self._list = tool_format is ToolFormat.MISTRAL
        self._names = frozenset(names)
        self._most = most
        self._new_id = new_id
        self._state = _State.TEXT if tool_format is ToolFormat.HERMES else _State.START
        self._held = ""
        self._tag = ""
        """What has to be content again where no call comes of it."""
        self._scan = ObjectScan()
        self._calls = 0
        self._parts: list[Part] = []
        self._steps = {
            _State.START: self._start,
            _State.TEXT: self._text,
            _State.OPENED: self._opened,
            _State.CALL: self._call,
            _State.ARGUMENTS: self._arguments,
            _State.REST: self._rest,
            _State.AFTER: self._after,
        }

    @property
    def called(self) -> bool:
        """Whether there was a call."""
        return self._calls > 0

    def push(self, text: str) -> list[Part]:
        """What more text brings."""
        self._held += text
        return self._run(final=False)

    def finish(self) -> list[Part]:
        """What is left once no text will come."""
        parts = self._run(final=True)
        self._state = _State.DONE
        return parts

    def _run(self, *, final: bool) -> list[Part]:
        while self._state is not _State.DONE and self._steps[self._state](final):
            pass
        parts, self._parts = self._parts, []
        return parts

    # Each step returns whether another one may follow without more text.

    def _start(self, final: bool) -> bool:
        """The whole output may be a call without a tag."""
        begun = self._held.lstrip()
        if not begun and not final:
            return False
        if self._list and not final and re.fullmatch(r"\[\s*", begun):
            return False
        if re.match(r"\[\s*\{" if self._list else r"\{", begun):
            self._held = begun
            return self._go(_State.OPENED)
        return self._go(_State.TEXT)

    def _text(self, final: bool) -> bool:
        """Content, up to a tag; white space at its end waits, and what may become a tag."""
        found = self._held.find(self._opening) if self._opening else -1
        if found >= 0:
            self._say(self._held[:found].rstrip())
            self._tag = self._opening
            self._held = self._held[found + len(self._opening) :]
            return self._go(_State.OPENED)
        if final:
            self._say(self._held.rstrip() if self.called else self._held)
            self._held = ""
            return False
        shown = self._held[: len(self._held) - _begun(self._held, self._opening)].rstrip()
        self._say(shown)
        self._held = self._held[len(shown) :]
        return False

    def _opened(self, final: bool) -> bool:
        """A call comes next, or a list of calls."""
        begun = self._held.lstrip()
        if self._list and begun.startswith("["):
            begun = begun[1:].lstrip()
        if begun.startswith("{"):
            self._tag += self._held[: len(self._held) - len(begun)]
            self._held, self._scan = begun, ObjectScan()
            return self._go(_State.CALL)
        return False if not begun and not final else self._is_content()

    def _call(self, final: bool) -> bool:
        """An object that may be a call; its arguments go out as they come if its name is known."""
        if (head := _HEAD.match(self._held)) is not None:
            if head["name"] not in self._names:
                return self._is_content()
            self._begin(head["name"])
            self._held, self._scan = self._held[head.end() :], ObjectScan()
            return self._go(_State.ARGUMENTS)
        end = self._scan.end(self._held)
        if end is None:
            return self._is_content() if final else False
        known = _call_of(self._held[:end], self._names)
        if known is None:
            return self._is_content()
        self._begin(known[0])
        self._argue(known[1])
        self._held = self._held[end:]
        return self._go(_State.AFTER)

    def _arguments(self, final: bool) -> bool:
        end = self._scan.end(self._held)
        if end is None:
            seen = len(self._held) if final else self._scan.seen
            self._argue(self._held[:seen])
            self._held = self._held[seen:]
            self._scan.moved()
            return False
        self._argue(self._held[:end])
        self._held = self._held[end:]
        return self._go(_State.REST)

    def _rest(self, _final: bool) -> bool:
        """What follows the arguments in a call's object says nothing more."""
        begun = self._held.lstrip()
        if not begun:
            return False
        if begun.startswith(","):
            end = ObjectScan(depth=1).end(begun)
            if end is None:
                return False
            self._held = begun[end:]
        else:
            self._held = begun.removeprefix("}")
        return self._go(_State.AFTER)

    def _after(self, final: bool) -> bool:
        """Behind a call: its closing tag, the next one of a list, or content again."""
        begun = self._held.lstrip()
        if self._format is ToolFormat.HERMES:
            if not final and _CLOSING.startswith(begun):
                return False if begun != _CLOSING else self._closed(begun)
            return self._closed(begun)
        if not begun:
            return False
        separators = "," if self._list else ";,"
        if begun[0] in separators:
            rest = begun[1:].lstrip()
            if not rest and not final:
                return False
            if rest.startswith("{"):
                self._tag, self._held, self._scan = begun[: -len(rest)], rest, ObjectScan()
                return self._go(_State.CALL)
        if self._list and begun[0] == "]":
            self._held = begun[1:]
        elif begun[0] == "{" and not self._list:
            self._tag, self._held, self._scan = "", begun, ObjectScan()
            return self._go(_State.CALL)
        return self._go(_State.TEXT)

    def _closed(self, begun: str) -> bool:
        if begun.startswith(_CLOSING):
            self._held = begun[len(_CLOSING) :]
        return self._go(_State.TEXT)

    def _go(self, state: _State) -> bool:
        self._state = state
        return True

    def _is_content(self) -> bool:
        """No call comes of what was begun."""
        if self._tag:
            self._say(self._tag)
            self._tag = ""
        elif self._held:  # of what is looked at again, something must be less
            self._say(self._held[0])
            self._held = self._held[1:]
        return self._go(_State.TEXT)

    def _begin(self, name: str) -> None:
        self._tag = ""
        if self._most is None or self._calls < self._most:
            self._parts.append(CallBegun(self._calls, self._new_id(), name))
        self._calls += 1

    def _argue(self, text: str) -> None:
        index = self._calls - 1
        if text and (self._most is None or index < self._most):
            self._parts.append(Arguments(index, text))

    def _say(self, text: str) -> None:
        if text:
            self._parts.append(Content(text))


def _begun(text: str, tag: str) -> int:
    """How many of the last characters of `text` may be the beginning of `tag`."""
    most = min(len(text), len(tag) - 1)
    return next((n for n in range(most, 0, -1) if tag.startswith(text[-n:])), 0)


def _call_of(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """Name and arguments of a call that is written in another way than `_HEAD`; None: it is
    no call of a function that there is."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    inner = call.get("function")
    call = inner if isinstance(inner, dict) else call
    name = call.get("name")
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if name not in names or not isinstance(arguments, dict):
        return None
    return str(name), json.dumps(arguments, ensure_ascii=False)
