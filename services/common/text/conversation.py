"""A conversation, as a chat template takes it.

Knows no template and no limits; JSON texts have become objects before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class ToolCall(NamedTuple):
    """A function's call that the model asked for."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str = ""
    """Empty: it has none."""

    def variables(self) -> dict[str, Any]:
        """As templates know it."""
        function = {"name": self.name, "arguments": self.arguments}
        return _present(id=self.call_id) | {"type": "function", "function": function}


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    content: str
    name: str = ""
    """Of the speaker; empty: none."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """The call that it answers; empty: none."""

    def variables(self) -> dict[str, Any]:
        """As templates know it; what is absent is not defined there."""
        calls = [call.variables() for call in self.tool_calls]
        rest = _present(name=self.name, tool_calls=calls, tool_call_id=self.tool_call_id)
        return {"role": self.role, "content": self.content} | rest


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and what else a template is told."""

    messages: Sequence[Message]
    """Oldest first."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Functions that the model may call."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template."""


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}
