"""Tools of a request: what is wrong with them is named, and what they allow is held to."""

import json
from typing import Any

import pytest

from baton.constraints import Grammar
from baton.events import ToolFormat
from services.common.constraints import Constraint, Kind
from services.common.constraints.grammars import TokenTable
from services.gateway.errors import HttpError
from services.gateway.tool_calls import CallBegun, ToolCallParser
from services.gateway.tools import Chosen, Function, constraint_of, functions_of

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "day": {"$ref": "#/$defs/day"}},
        "required": ["city", "day"],
        "additionalProperties": False,
        "$defs": {"day": {"type": "integer", "minimum": 1, "maximum": 7}},
    },
}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "now"}},
]
FUNCTIONS = functions_of(TOOLS)
FORMATS = [ToolFormat.HERMES, ToolFormat.LLAMA, ToolFormat.MISTRAL, ToolFormat.JSON]


@pytest.fixture(scope="module")
def table() -> TokenTable:
    return TokenTable.of_bytes()


def taken(table: TokenTable, constraint: object, text: str) -> tuple[int, bool]:
    """How many bytes of `text` may come, and whether it may end there."""
    assert isinstance(constraint, Grammar)
    matcher = table.matcher(Constraint(Kind.GRAMMAR, constraint.lark))
    count = matcher.try_consume_tokens(list(text.encode()))
    return count, matcher.is_accepting()


def call(name: str, arguments: object, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments})


GOOD = {"city": "a", "day": 7}
WRITTEN = {
    ToolFormat.HERMES: f"<tool_call>\n{call('get_weather', GOOD)}\n</tool_call>",
    ToolFormat.LLAMA: call("get_weather", GOOD, "parameters"),
    ToolFormat.MISTRAL: f"[{call('get_weather', GOOD)}]",
    ToolFormat.JSON: call("get_weather", GOOD),
}


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_forced_call_is_all_of_the_output_and_is_parsed_back(
    table: TokenTable, tool_format: ToolFormat
) -> None:
    chosen = Chosen.of(FUNCTIONS, "required")
    constraint = constraint_of(chosen, tool_format, parallel=False)
    assert constraint is not None
    table.check(Constraint(Kind.GRAMMAR, constraint.lark))  # type: ignore[union-attr]
    text = WRITTEN[tool_format]
    assert taken(table, constraint, text) == (len(text), True)
    assert taken(table, constraint, text + "\n" + text)[0] == len(text)
    for wrong in ("Hello", text.replace("get_weather", "get"), text.replace("7", "8")):
        count, complete = taken(table, constraint, wrong)
        assert count < len(wrong)
        assert not complete
    parts = ToolCallParser(tool_format, {"get_weather"}).push(text)
    assert isinstance(parts[0], CallBegun)


def test_a_named_function_is_the_only_one(table: TokenTable) -> None:
    chosen = Chosen.of(FUNCTIONS, {"type": "function", "function": {"name": "now"}})
    constraint = constraint_of(chosen, ToolFormat.JSON)
    text = call("now", {})
    assert taken(table, constraint, text) == (len(text), True)
    assert not taken(table, constraint, WRITTEN[ToolFormat.JSON])[1]


def test_calls_may_be_several(table: TokenTable) -> None:
    chosen = Chosen.of(FUNCTIONS, "required")
    hermes = "\n".join([WRITTEN[ToolFormat.HERMES]] * 3)
    mistral = f"[{call('now', {})}, {call('now', {})}]"
    for tool_format, text in ((ToolFormat.HERMES, hermes), (ToolFormat.MISTRAL, mistral)):
        assert taken(table, constraint_of(chosen, tool_format), text) == (len(text), True)


def test_where_the_model_may_choose_text_is_free_and_strict_calls_are_held(
    table: TokenTable,
) -> None:
    constraint = constraint_of(Chosen.of(FUNCTIONS, "auto"), ToolFormat.HERMES)
    good = f"Let me see. {WRITTEN[ToolFormat.HERMES]} Done."
    anything = f"<tool_call>{call('now', {'a': [1]})}</tool_call>"
    for text in ("Hello <tool>", good, anything):
        assert taken(table, constraint, text) == (len(text), True)
    for wrong in (good.replace("7", "8"), good.replace("get_weather", "got")):
        assert taken(table, constraint, wrong)[0] < len(wrong)
    assert constraint_of(Chosen.of(FUNCTIONS, None), ToolFormat.LLAMA) is None
    lax = (Function("now", {}),)
    assert constraint_of(Chosen.of(lax, "auto"), ToolFormat.HERMES) is None
    assert constraint_of(Chosen.of(FUNCTIONS, "none"), ToolFormat.HERMES) is None


NAME = "tools[0].function.name"
WRONG: list[tuple[Any, str]] = [
    ("x", "tools[0]"),
    ({"function": {"name": "a"}}, "tools[0].type"),
    ({"type": "web_search"}, "tools[0].type"),
    ({"type": "function"}, "tools[0].function"),
    ({"type": "function", "function": {}}, NAME),
    ({"type": "function", "function": {"name": ""}}, NAME),
    ({"type": "function", "function": {"name": "a b"}}, NAME),
    ({"type": "function", "function": {"name": "a" * 65}}, NAME),
    ({"type": "function", "function": {"name": "a", "strict": 1}}, "tools[0].function.strict"),
    ({"type": "function", "function": {"name": "a", "description": 1}},
     "tools[0].function.description"),
    ({"type": "function", "function": {"name": "a", "parameters": []}},
     "tools[0].function.parameters"),
    ({"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}},
     "tools[0].function.parameters.type"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "field"), WRONG)
def test_what_is_wrong_with_a_tool_is_named(tool: Any, field: str) -> None:
    with pytest.raises(HttpError) as caught:
        functions_of([tool])
    assert (caught.value.status, caught.value.param) == (400, field)


def test_a_function_is_there_once() -> None:
    with pytest.raises(HttpError) as caught:
        functions_of([TOOLS[1], TOOLS[0], TOOLS[1]])
    assert caught.value.param == "tools[2].function.name"


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ("sometimes", "tool_choice"),
        ({"type": "x"}, "tool_choice"),
        ({"type": "function"}, "tool_choice.function.name"),
        ({"type": "function", "function": {"name": "x"}}, "tool_choice.function.name"),
    ],
)
def test_what_is_wrong_with_a_choice_is_named(choice: Any, field: str) -> None:
    with pytest.raises(HttpError) as caught:
        Chosen.of(FUNCTIONS, choice)
    assert caught.value.param == field


def test_a_call_of_nothing_can_not_be_forced() -> None:
    with pytest.raises(HttpError) as caught:
        Chosen.of((), "required")
    assert caught.value.param == "tool_choice"
    assert Chosen.of((), "auto") == Chosen(())
