"""A request's tools: checked, and made the language that an output is held to.

    functions_of(tools)                          what may be called
    Chosen.of(functions, tool_choice)            which of those, and whether one must be
    constraint_of(chosen, format, parallel)      None where text is free

Where a call is forced, the output is calls alone. Where it is up to the model, calls of
functions that are `strict` are held to their schemas, in formats that announce a call by a tag.
Pure; knows no HTTP but its errors, and no models.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.constraints import Constraint, Grammar
from baton.events import ToolFormat
from services.gateway.errors import HttpError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_ARGUMENTS: dict[str, Any] = {
    "type": "object", "properties": {}, "additionalProperties": False,
}  # fmt: skip
_ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
_SPACES = {"whitespace_pattern": "[ \\n]{1,40}"}
"""Between the parts of arguments: a model can't go on with them for ever."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called."""

    name: str
    parameters: Mapping[str, Any]
    """JSON Schema of its arguments, an object."""
    strict: bool = False
    """Whether arguments are held to the schema where the call is not forced."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What may be called, and whether it must be."""

    functions: tuple[Function, ...]
    required: bool = False

    @classmethod
    def of(cls, functions: Sequence[Function], tool_choice: Any) -> "Chosen":
        """Of `tool_choice` as OpenAI's clients send it. Raises HttpError where it is wrong."""
        if tool_choice in (None, "auto"):
            return cls(tuple(functions))
        if tool_choice == "none":
            return cls(())
        if not functions:
            raise _wrong("tool_choice", "needs tools")
        if tool_choice == "required":
            return cls(tuple(functions), required=True)
        name = _named(tool_choice)
        named = tuple(one for one in functions if one.name == name)
        if not named:
            raise _wrong("tool_choice.function.name", f"no tool is called {name!r:.80}")
        return cls(named, required=True)


def functions_of(tools: Sequence[Any]) -> tuple[Function, ...]:
    """The functions that `tools` define. Raises HttpError naming what is wrong."""
    functions: list[Function] = []
    for index, tool in enumerate(tools):
        function = _function(f"tools[{index}]", tool)
        if function.name in {one.name for one in functions}:
            raise _wrong(f"tools[{index}].function.name", f"{function.name!r} is there twice")
        functions.append(function)
    return tuple(functions)


def constraint_of(
    chosen: Chosen, tool_format: ToolFormat, *, parallel: bool = True
) -> Constraint | None:
    """What the output must be for the sake of calls; None: anything."""
    if not chosen.functions:
        return None
    if chosen.required:
        return Grammar(_forced(chosen.functions, tool_format, parallel))
    if tool_format is ToolFormat.HERMES and any(one.strict for one in chosen.functions):
        return Grammar(_tagged(chosen.functions, parallel))
    return None


def _forced(functions: Sequence[Function], tool_format: ToolFormat, parallel: bool) -> str:
    """Calls, and nothing else."""
    key = "parameters" if tool_format is ToolFormat.LLAMA else "arguments"
    calls = _calls(functions, key, held=True)
    match tool_format:
        case ToolFormat.HERMES:
            more = ' ("\\n" tagged)*' if parallel else ""
            start = f'start: tagged{more}\ntagged: "<tool_call>\\n" call "\\n</tool_call>"\n'
        case ToolFormat.MISTRAL:
            more = ' (", " call)*' if parallel else ""
            start = f'start: "[" call{more} "]"\n'
        case _:
            start = "start: call\n"
    return start + calls


def _tagged(functions: Sequence[Function], parallel: bool) -> str:
    """Text, in which calls may come between tags."""
    several = "*" if parallel else "?"
    return (
        f"start: tagged{several} TEXT\n"
        'tagged: opening /\\s{0,8}/ call /\\s{0,8}/ "</tool_call>"\n'
        'opening[lazy]: TEXT "<tool_call>"\n'
        "TEXT: /(.|\\n)*/\n" + _calls(functions, "arguments", held=False)
    )


def _calls(functions: Sequence[Function], key: str, *, held: bool) -> str:
    """The rule `call`: an object for one of the functions. `held`: all arguments are held to
    their schemas, not just the strict ones."""
    rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(functions)))}"]
    for index, one in enumerate(functions):
        schema = one.parameters if held or one.strict else _ANY_ARGUMENTS
        head = json.dumps(f'{{"name": {json.dumps(one.name)}, "{key}": ')
        text = json.dumps({**schema, "x-guidance": _SPACES}, ensure_ascii=False)
        rules.append(f'call_{index}: {head} args_{index} "}}"\nargs_{index}: %json {text}')
    return "\n".join(rules) + "\n"


def _function(path: str, tool: Any) -> Function:
    if not isinstance(tool, Mapping):
        raise _wrong(path, "must be an object")
    if tool.get("type") != "function":
        raise _wrong(f"{path}.type", "must be `function`")
    function = tool.get("function")
    path = f"{path}.function"
    if not isinstance(function, Mapping):
        raise _wrong(path, "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(f"{path}.name", "must be 1 to 64 letters, digits, underscores, dots or dashes")
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise _wrong(f"{path}.description", "must be a string")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise _wrong(f"{path}.strict", "must be true or false")
    return Function(name, _parameters(path, function.get("parameters")), bool(strict))


def _parameters(path: str, parameters: Any) -> Mapping[str, Any]:
    if parameters is None:
        return _NO_ARGUMENTS
    if not isinstance(parameters, Mapping):
        raise _wrong(f"{path}.parameters", "must be a JSON Schema, an object")
    if parameters.get("type", "object") != "object":
        raise _wrong(f"{path}.parameters.type", "must be `object`")
    return {"type": "object", **parameters}


def _named(tool_choice: Any) -> str:
    if not isinstance(tool_choice, Mapping) or tool_choice.get("type") != "function":
        raise _wrong(
            "tool_choice", "must be `none`, `auto`, `required`, or an object of type `function`"
        )
    function = tool_choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise _wrong("tool_choice.function.name", "must be a string")
    return name


def _wrong(field: str, message: str) -> HttpError:
    return HttpError(400, f"{field}: {message}", "invalid_request", field)
