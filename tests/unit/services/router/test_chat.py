"""Conversations: what may be in them, and what becomes of their JSON texts."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.errors import InvalidRequest
from services.common.text import Conversation, Message, ToolCall
from services.router.chat import check_chat
from services.router.request import ChatPrompt, MessageFields, ModelLimits, ToolCallFields

LIMITS = ModelLimits("demo", 100, context_tokens=32, default_max_tokens=16, max_characters=1000)
HELLO = MessageFields("user", "hello")
CHAT = ChatPrompt((HELLO,))


def calling(*calls: ToolCallFields) -> ChatPrompt:
    return ChatPrompt((HELLO, MessageFields("assistant", "", tool_calls=calls)))


def test_json_texts_become_objects():
    prompt = ChatPrompt(
        (
            MessageFields("user", "2+2?", "ann"),
            MessageFields("assistant", "", "", (ToolCallFields("1", "add", '{"a": [2, 2]}'),)),
            MessageFields("tool", "4", "add", (), "1"),
        ),
        ('{"type": "function"}',),
        '{"thinking": false}',
    )
    assert check_chat(prompt, LIMITS) == Conversation(
        [
            Message("user", "2+2?", "ann"),
            Message("assistant", "", "", (ToolCall("add", {"a": [2, 2]}, "1"),)),
            Message("tool", "4", "add", (), "1"),
        ],
        [{"type": "function"}],
        {"thinking": False},
    )


def test_a_message_may_say_nothing():
    said = check_chat(ChatPrompt((MessageFields("r" * 64, ""),)), LIMITS)
    assert said == Conversation([Message("r" * 64, "")], [], {})


@pytest.mark.parametrize(
    ("prompt", "field", "message"),
    [
        (
            replace(CHAT, messages=(HELLO, HELLO._replace(name="n" * 257))),
            "chat.messages[1].name",
            "257 characters are more than 256",
        ),
        (
            replace(CHAT, messages=(HELLO._replace(name="\ud800"),)),
            "chat.messages[0].name",
            "not valid Unicode",
        ),
        (
            replace(CHAT, messages=(HELLO._replace(tool_call_id="n" * 257),)),
            "chat.messages[0].tool_call_id",
            "257 characters",
        ),
        (
            calling(*[ToolCallFields("", "f", "{}")] * 129),
            "chat.messages[1].tool_calls",
            "129 calls are more than 128",
        ),
        (
            calling(ToolCallFields("", "f", "{}"), ToolCallFields("", "", "{}")),
            "chat.messages[1].tool_calls[1].name",
            "is empty",
        ),
        (
            calling(ToolCallFields("i" * 257, "f", "{}")),
            "chat.messages[1].tool_calls[0].id",
            "257 characters",
        ),
        *(
            (
                calling(ToolCallFields("", "f", text)),
                "chat.messages[1].tool_calls[0].arguments_json",
                message,
            )
            for text, message in {
                "": "is not JSON: Expecting value",
                "[]": "is not a JSON object",
                '{"a": NaN}': "NaN is no number of JSON",
                '{"a": "\\ud800"}': "not valid Unicode",
                '{"\\ud800": 1}': "not valid Unicode",
                '{"a": ' + "[" * 70 + "]" * 70 + "}": "nested more than 64 deep",
                '{"a": ' + "[" * 30_000 + "]" * 30_000 + "}": "nested too deeply",
                json.dumps({"a": "x" * 65_536}): "are more than 65536",
                '{"a": 1' + "0" * 5_000 + "}": "is not JSON",
            }.items()
        ),
        (replace(CHAT, tools_json=("{}",) * 129), "chat.tools_json", "129 tools are more than 128"),
        (
            replace(CHAT, tools_json=(json.dumps({"a": "x" * 60_000}),) * 18),
            "chat.tools_json",
            "are more than 1048576",
        ),
        (replace(CHAT, tools_json=("{}", "{}", "1")), "chat.tools_json[2]", "not a JSON object"),
        (
            replace(CHAT, template_variables_json="x"),
            "chat.template_variables_json",
            "is not JSON",
        ),
        (
            replace(CHAT, template_variables_json='"x"'),
            "chat.template_variables_json",
            "not a JSON object",
        ),
    ],
)
def test_what_is_wrong_is_named(prompt, field, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        check_chat(prompt, LIMITS)
    assert caught.value.field == field


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8")), values))
def test_objects_come_through_as_they_are(value):
    found = check_chat(replace(CHAT, tools_json=(json.dumps(value),)), LIMITS)
    assert found.tools == [value]


@given(st.text())
def test_any_text_is_an_object_or_refused_by_name(text):
    try:
        check_chat(replace(CHAT, tools_json=(text,)), LIMITS)
        field = None
    except InvalidRequest as error:
        field = error.field
    assert field in (None, "chat.tools_json[0]")
