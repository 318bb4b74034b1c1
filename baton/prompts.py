"""What a generation continues: text, token ids, or a conversation.

Plain values; `baton._prompt` turns them into messages of the wire.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class ToolCall(NamedTuple):
    """A call of a function that the model asked for."""

    id: str
    name: str
    arguments_json: str
    """The text of a JSON object."""


class Message(NamedTuple):
    """One message of a conversation; a mapping with the same keys does as well."""

    role: str
    content: str
    name: str = ""
    """Who speaks; empty: only the role is known."""
    tool_calls: Sequence[ToolCall] = ()
    """Calls that an assistant asks for."""
    tool_call_id: str = ""
    """The call that a tool's message answers."""


ChatMessage = Message | Mapping[str, Any] | tuple[str, str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and what the model's chat template is told besides."""

    messages: Sequence[ChatMessage]
    tools_json: Sequence[str] = ()
    """Functions that the model may call: each the text of a JSON object as templates take it."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template, of values that JSON has."""


Prompt = str | Sequence[int] | Sequence[ChatMessage] | Conversation
"""Text, token ids or a conversation."""
