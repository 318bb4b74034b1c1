"""From prompts to messages of the wire, for both clients. Knows no channels and no calls."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from baton import errors
from baton._checks import kind_of, to_ids, to_sequence, to_text
from baton.prompts import ChatMessage, Conversation, Message, ToolCall
from baton.v1 import inference_pb2

_MESSAGE_KEYS = frozenset(Message._fields)
_CALL_KEYS = frozenset(ToolCall._fields)


def add_prompt(request: inference_pb2.GenerateRequest, prompt: Any) -> None:
    """Sets the request's input. Raises as `to_request`."""
    if isinstance(prompt, str):
        request.text = to_text("prompt", "text", prompt)
        return
    if isinstance(prompt, Conversation):
        request.chat.CopyFrom(to_chat(prompt))
        return
    items = to_sequence("prompt", prompt)
    if items and isinstance(items[0], Mapping | tuple):
        request.chat.CopyFrom(to_chat(Conversation(items)))
        return
    request.token_ids.SetInParent()
    request.token_ids.ids.extend(to_ids("prompt", "token_ids.ids", items))


def to_chat(conversation: Conversation) -> inference_pb2.ChatMessages:
    """The message for a conversation."""
    chat = inference_pb2.ChatMessages()
    for position, item in enumerate(to_sequence("prompt", conversation.messages)):
        _add_message(chat, position, item)
    for position, tool in enumerate(to_sequence("tools_json", conversation.tools_json)):
        at = f"tools_json[{position}]"
        chat.tools_json.append(to_text(at, f"chat.{at}", tool))
    if conversation.template_variables:
        chat.template_variables_json = _variables(conversation.template_variables)
    return chat


def _add_message(chat: inference_pb2.ChatMessages, position: int, item: Any) -> None:
    argument, path = f"prompt[{position}]", f"chat.messages[{position}]"
    message = _message(argument, item)
    added = chat.messages.add()
    for name in ("role", "content", "name", "tool_call_id"):
        text = to_text(f"{argument}.{name}", f"{path}.{name}", getattr(message, name))
        setattr(added, name, text)
    for number, call in enumerate(to_sequence(f"{argument}.tool_calls", message.tool_calls)):
        at = f"tool_calls[{number}]"
        known = _call(f"{argument}.{at}", call)
        texts = {
            name: to_text(f"{argument}.{at}.{name}", f"{path}.{at}.{name}", getattr(known, name))
            for name in ToolCall._fields
        }
        added.tool_calls.add(**texts)


def _message(argument: str, item: Any) -> Message:
    if isinstance(item, Message):
        return item
    if isinstance(item, Mapping) and {"role", "content"} <= item.keys() <= _MESSAGE_KEYS:
        return Message(**item)
    if isinstance(item, tuple) and len(item) == 2:
        return Message(*item)
    raise TypeError(f"{argument}: expected a message with `role` and `content`, got {item!r:.80}")


def _call(argument: str, item: Any) -> ToolCall:
    if isinstance(item, ToolCall):
        return item
    if isinstance(item, Mapping) and item.keys() == _CALL_KEYS:
        return ToolCall(**item)
    raise TypeError(f"{argument}: expected a ToolCall, got {kind_of(item)}")


def _variables(variables: Any) -> str:
    if not isinstance(variables, Mapping):
        raise TypeError(f"template_variables: expected a mapping, got {kind_of(variables)}")
    try:
        return json.dumps(dict(variables), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise errors.InvalidRequest(
            "chat.template_variables_json", f"is not a JSON object: {error}"
        ) from error


def to_tokenize_request(
    prompt: str | Conversation | Sequence[ChatMessage], model: str, special_tokens: bool
) -> inference_pb2.TokenizeRequest:
    """The message for a text or a conversation to tokenize."""
    request = inference_pb2.TokenizeRequest(without_special_tokens=not special_tokens)
    request.model = to_text("model", "model", model)
    if isinstance(prompt, str):
        request.text = to_text("prompt", "text", prompt)
    elif isinstance(prompt, Conversation):
        request.chat.CopyFrom(to_chat(prompt))
    else:
        request.chat.CopyFrom(to_chat(Conversation(prompt)))
    return request


def to_detokenize_request(token_ids: Sequence[int], model: str) -> inference_pb2.DetokenizeRequest:
    """The message for tokens to be made text."""
    ids = to_ids("token_ids", "token_ids", to_sequence("token_ids", token_ids))
    return inference_pb2.DetokenizeRequest(model=to_text("model", "model", model), token_ids=ids)
