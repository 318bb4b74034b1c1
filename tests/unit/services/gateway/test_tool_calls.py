"""Calls in the text of an output: found in every format, however the text is cut."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.events import ToolFormat
from services.gateway.tool_calls import Arguments, CallBegun, Content, Part, ToolCallParser

NAMES = {"weather", "now"}
HERMES, LLAMA, MISTRAL, JSON = (
    ToolFormat.HERMES, ToolFormat.LLAMA, ToolFormat.MISTRAL, ToolFormat.JSON,
)  # fmt: skip
ARGUMENTS = r'{"city": "São \"P}\\", "days": [1, {"n": null}]}'
WEATHER = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
NOW = '{"name": "now", "arguments": {}}'
TAGGED = f"<tool_call>\n{WEATHER}\n</tool_call>"

Outcome = tuple[str, list[tuple[str, str]]]


def parsed(
    tool_format: ToolFormat, pieces: list[str], most: int | None = None
) -> tuple[Outcome, list[Part]]:
    """The content and the calls (name, arguments), and the parts that they came in."""
    ids = (f"call_{number}" for number in itertools.count())
    parser = ToolCallParser(tool_format, NAMES, most, lambda: next(ids))
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    assert parser.finish() == []
    content, calls = "", []
    for part in parts:
        match part:
            case Content(text):
                assert text
                content += text
            case CallBegun(index, call_id, name):
                assert index == len(calls)
                assert call_id == f"call_{index}"
                calls.append((name, ""))
            case Arguments(index, text):
                assert index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return (content, calls), parts


A, N = ("weather", ARGUMENTS), ("now", "{}")
CASES: list[tuple[ToolFormat, str, Outcome]] = [
    (HERMES, "Hello.\n", ("Hello.\n", [])),
    (HERMES, "", ("", [])),
    (HERMES, TAGGED, ("", [A])),
    (HERMES, f"Let me see.\n{TAGGED}\n{TAGGED}\n", ("Let me see.", [A, A])),
    (HERMES, f"<tool_call>{NOW}</tool_call> and so on \n", (" and so on", [N])),
    (HERMES, f"<tool_call>\n{NOW}", ("", [N])),
    (HERMES, "a < b, a <tool b, <tool_cal", ("a < b, a <tool b, <tool_cal", [])),
    (HERMES, "<tool_call>nothing</tool_call>", ("<tool_call>nothing</tool_call>", [])),
    (HERMES, f"<tool_call><tool_call>{NOW}</tool_call>", ("<tool_call>", [N])),
    (HERMES, '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
     ('<tool_call>{"name": "other", "arguments": {}}</tool_call>', [])),
    (HERMES, '<tool_call>{"name": "weather", "argu', ('<tool_call>{"name": "weather", "argu', [])),
    (HERMES, '<tool_call>{"name": "weather", "arguments": {"city": "a',
     ("", [("weather", '{"city": "a')])),
    (HERMES, '<tool_call>{"name": "now", "arguments": {}</tool_call>bye', ("bye", [N])),
    (HERMES, '<tool_call>{"name": "now", "arguments": {}, "id": {"a": "}"}}</tool_call>',
     ("", [N])),
    (HERMES, '<tool_call>{"arguments": {"a": "b"}, "name": "now"}</tool_call>',
     ("", [("now", '{"a": "b"}')])),
    (HERMES, r'<tool_call>{"name": "now", "arguments": "{\"a\": 1}"}</tool_call>',
     ("", [("now", '{"a": 1}')])),
    (HERMES, '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
     ('<tool_call>{"name": "now", "arguments": [1]}</tool_call>', [])),
    (HERMES, '<tool_call>{"type": "function", "function": {"name": "now"}}</tool_call>', ("", [N])),
    (HERMES, f"{NOW}", (NOW, [])),
    (LLAMA, WEATHER.replace("arguments", "parameters"), ("", [A])),
    (LLAMA, f" \n{WEATHER}; {NOW}", ("", [A, N])),
    (LLAMA, f"<|python_tag|>{NOW}", ("", [N])),
    (LLAMA, f"I think {NOW}", (f"I think {NOW}", [])),
    (LLAMA, '{"answer": 42}', ('{"answer": 42}', [])),
    (LLAMA, "{ it is {open", ("{ it is {open", [])),
    (LLAMA, f"{NOW} done", (" done", [N])),
    (MISTRAL, f"[TOOL_CALLS][{WEATHER}, {NOW}]", ("", [A, N])),
    (MISTRAL, f"[TOOL_CALLS] [{NOW}]\n", ("", [N])),
    (MISTRAL, f"[ {WEATHER},{NOW} ]", ("", [A, N])),
    (MISTRAL, f"Well.[TOOL_CALLS]{NOW}", ("Well.", [N])),
    (MISTRAL, "[1, 2] [TOOL_CALL", ("[1, 2] [TOOL_CALL", [])),
    (MISTRAL, '[{"a": 1}]', ('[{"a": 1}]', [])),
    (MISTRAL, "[TOOL_CALLS] no", ("[TOOL_CALLS] no", [])),
    (JSON, WEATHER, ("", [A])),
    (JSON, "text {", ("text {", [])),
    (JSON, "   ", ("   ", [])),
]  # fmt: skip


@pytest.mark.parametrize(("tool_format", "text", "expected"), CASES)
def test_calls_and_content(tool_format: ToolFormat, text: str, expected: Outcome) -> None:
    assert parsed(tool_format, [text])[0] == expected
    assert parsed(tool_format, list(text))[0] == expected


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[", "]", "{", "}", ",", ";",
    '"', "\\", " ", "\n", "x", "<tool", WEATHER, NOW, '{"name": "weather", "arguments": {"a": "',
    '{"name": "other", "arguments": {}}', '{"arguments": {}, "name": "now"}', "é",
]  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    tool_format=st.sampled_from([HERMES, LLAMA, MISTRAL, JSON]),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    most=st.sampled_from([None, 1]),
)
def test_cutting_the_text_elsewhere_changes_nothing(
    tool_format: ToolFormat, fragments: list[str], cuts: list[int], most: int | None
) -> None:
    text = "".join(fragments)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    whole, _ = parsed(tool_format, [text], most)
    assert parsed(tool_format, pieces, most)[0] == whole
    assert parsed(tool_format, list(text), most)[0] == whole


@settings(max_examples=50, deadline=None)
@given(
    arguments=st.dictionaries(
        st.text(max_size=5),
        st.recursive(st.text(max_size=8) | st.integers() | st.none() | st.booleans(), st.lists),
        max_size=4,
    ),
    ascii_only=st.booleans(),
    before=st.text(alphabet="ab <>{", max_size=8),
)
def test_any_arguments_come_as_they_were_written(
    arguments: dict[str, object], ascii_only: bool, before: str
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    text = f'{before}<tool_call>\n{{"name": "now", "arguments": {written}}}\n</tool_call>'
    (content, calls), _ = parsed(HERMES, list(text))
    assert calls == [("now", written)]
    assert content == before.rstrip()


def test_content_and_arguments_come_as_soon_as_they_can() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.push("Hello ") == [Content("Hello")]
    assert parser.push("you <too") == [Content(" you")]
    assert parser.push('l_call>{"name": "weather", "arguments": ') == []
    begun, first = parser.push('{"city": "Par')
    assert isinstance(begun, CallBegun)
    assert begun.call_id.startswith("call_")
    assert first == Arguments(0, '{"city": "Par')
    assert parser.push('is"') == [Arguments(0, 'is"')]
    assert parser.push("}}</tool_call>") == [Arguments(0, "}")]
    assert parser.called


def test_calls_beyond_the_most_are_dropped() -> None:
    assert parsed(HERMES, [TAGGED + TAGGED], most=1)[0] == ("", [A])
