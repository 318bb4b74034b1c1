"""From a body's messages to the client's."""

from collections.abc import Sequence
from typing import Any

from baton.client import Conversation, Message, ToolCall
from services.gateway.errors import Names, bad
from services.gateway.options import json_text
from services.gateway.schemas import Body, ChatMessage

CONVERSATION_NAMES: Names = (
    ("chat.messages", "messages"),
    ("chat.tools_json", "tools"),
    ("chat.template_variables_json", "chat_template_kwargs"),
    ("chat", "messages"),
)
"""What bodies call the parts of a conversation."""
_RESENT = frozenset({"refusal", "annotations", "reasoning", "reasoning_content", "cache_control"})
"""What clients send back of an answer, and what only other servers use."""
_ROLES = {"developer": "system"}
_JOINT = "\n"


def conversation_of(
    messages: Sequence[ChatMessage],
    tools: Sequence[dict[str, Any]] = (),
    variables: dict[str, Any] | None = None,
) -> Conversation:
    """The conversation. Raises HttpError, which names the field."""
    return Conversation(
        [_message(f"messages[{index}]", message) for index, message in enumerate(messages)],
        [json_text(f"tools[{index}]", tool) for index, tool in enumerate(tools)],
        variables or {},
    )


def _message(at: str, message: ChatMessage) -> Message:
    _check_extra(at, message)
    calls = message.tool_calls or []
    if calls and message.role != "assistant":
        raise bad(f"{at}.tool_calls", "only an assistant's message has them")
    if message.role == "tool" and not message.tool_call_id:
        raise bad(f"{at}.tool_call_id", "is missing")
    return Message(
        _ROLES.get(message.role, message.role),
        _content(f"{at}.content", message),
        message.name or "",
        tuple(ToolCall(one.id, one.function.name, one.function.arguments) for one in calls),
        message.tool_call_id or "",
    )


def _check_extra(at: str, message: Body) -> None:
    for name, value in (message.model_extra or {}).items():
        if value is not None and name not in _RESENT:
            raise bad(f"{at}.{name}", "is not a field that is known here", "unknown_field")


def _content(at: str, message: ChatMessage) -> str:
    content = message.content
    if content is None:
        if message.role != "assistant":
            raise bad(at, "is missing")
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(at, "must be a string or a list of parts of type text")
    return _JOINT.join(_part(f"{at}[{index}]", part) for index, part in enumerate(content))


def _part(at: str, part: Any) -> str:
    if not isinstance(part, dict):
        raise bad(at, "must be an object with type and text")
    if part.get("type") != "text":
        raise bad(f"{at}.type", f"must be text; {part.get('type')!r:.40} is not supported")
    text = part.get("text")
    if not isinstance(text, str):
        raise bad(f"{at}.text", "must be a string")
    return text
