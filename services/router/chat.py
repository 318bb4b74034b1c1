"""Checks a conversation, and makes objects of its JSON texts.

Errors name the field by its path in `baton.v1.ChatMessages`, below `chat`. Knows no template: what
roles there are and whether there can be tools is up to that.
"""

import json
from typing import Any, NoReturn

from baton.errors import InvalidRequest
from services.common.text import Conversation, Message, ToolCall
from services.router.request import ChatPrompt, MessageFields, ModelLimits, ToolCallFields
from services.router.text_fields import check_characters, check_length, check_unicode

MAX_ROLE_CHARACTERS = 64
MAX_NAME_CHARACTERS = 256
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128
MAX_JSON_CHARACTERS = 65_536
MAX_TOOLS_CHARACTERS = 1 << 20
_MAX_DEPTH = 64


def check_chat(prompt: ChatPrompt, limits: ModelLimits) -> Conversation:
    """The conversation of `prompt`. Raises InvalidRequest, which names the field."""
    _check_sizes(prompt, limits)
    messages = [
        _message(f"chat.messages[{index}]", message)
        for index, message in enumerate(prompt.messages)
    ]
    tools = [
        _object(f"chat.tools_json[{index}]", text) for index, text in enumerate(prompt.tools_json)
    ]
    variables: dict[str, Any] = {}
    if prompt.template_variables_json:
        variables = _object("chat.template_variables_json", prompt.template_variables_json)
    return Conversation(messages, tools, variables)


def _check_sizes(prompt: ChatPrompt, limits: ModelLimits) -> None:
    messages, tools = prompt.messages, prompt.tools_json
    if not messages:
        raise InvalidRequest("chat.messages", "is empty")
    if len(messages) > limits.context_tokens:
        raise InvalidRequest(
            "chat.messages",
            f"{len(messages)} messages can never fit a context of {limits.context_tokens} tokens",
        )
    check_characters("chat.messages", sum(len(one.content) for one in messages), limits)
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest("chat.tools_json", f"{len(tools)} tools are more than {MAX_TOOLS}")
    if (size := sum(map(len, tools))) > MAX_TOOLS_CHARACTERS:
        raise InvalidRequest(
            "chat.tools_json", f"{size} characters are more than {MAX_TOOLS_CHARACTERS}"
        )


def _message(name: str, fields: MessageFields) -> Message:
    _check_name(f"{name}.role", fields.role, MAX_ROLE_CHARACTERS, required=True)
    check_unicode(f"{name}.content", fields.content)
    _check_name(f"{name}.name", fields.name, MAX_NAME_CHARACTERS)
    if len(fields.tool_calls) > MAX_TOOL_CALLS:
        raise InvalidRequest(
            f"{name}.tool_calls", f"{len(fields.tool_calls)} calls are more than {MAX_TOOL_CALLS}"
        )
    calls = tuple(
        _call(f"{name}.tool_calls[{index}]", call) for index, call in enumerate(fields.tool_calls)
    )
    _check_name(f"{name}.tool_call_id", fields.tool_call_id, MAX_NAME_CHARACTERS)
    return Message(fields.role, fields.content, fields.name, calls, fields.tool_call_id)


def _call(name: str, fields: ToolCallFields) -> ToolCall:
    _check_name(f"{name}.id", fields.call_id, MAX_NAME_CHARACTERS)
    _check_name(f"{name}.name", fields.name, MAX_NAME_CHARACTERS, required=True)
    arguments = _object(f"{name}.arguments_json", fields.arguments_json)
    return ToolCall(fields.name, arguments, fields.call_id)


def _check_name(name: str, text: str, most: int, *, required: bool = False) -> None:
    if required and not text:
        raise InvalidRequest(name, "is empty")
    check_length(name, text, most)
    check_unicode(name, text)


def _object(name: str, text: str) -> dict[str, Any]:
    """The JSON object that `text` is."""
    check_length(name, text, MAX_JSON_CHARACTERS)
    check_unicode(name, text)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidRequest(name, "is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest(name, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(name, "is not a JSON object")
    _check_value(name, value)
    return value


def _check_value(name: str, value: Any, depth: int = 0) -> None:
    """Raises InvalidRequest for what no template could write: half a character, endless depth."""
    if depth > _MAX_DEPTH:
        raise InvalidRequest(name, f"is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        check_unicode(name, value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_unicode(name, key)
            _check_value(name, inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_value(name, inner, depth + 1)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
