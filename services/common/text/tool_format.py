"""How a model calls functions, told from what its chat template shows it of earlier calls."""

import re
from enum import Enum

_XML_ARGUMENTS = re.compile(r"<function=|<arg_key>|<parameter=")
_NAME_AND_PARAMETERS = re.compile(
    r"\\?[\"']name\\?[\"']\s*:.{0,200}?\\?[\"']parameters\\?[\"']\s*:", re.S
)


class ToolFormat(Enum):
    """What a call looks like in the output."""

    NONE = "none"
    """The template knows no functions."""
    HERMES = "hermes"
    """An object with `name` and `arguments` between <tool_call> and </tool_call>."""
    LLAMA = "llama"
    """An object with `name` and `parameters` that is all of the output."""
    MISTRAL = "mistral"
    """[TOOL_CALLS] and a list of objects with `name` and `arguments`."""
    JSON = "json"
    """The template knows functions, and shows none of the others."""


def tool_format(source: str) -> ToolFormat:
    """The format in the source of a template that knows functions."""
    if "[TOOL_CALLS]" in source:
        return ToolFormat.MISTRAL
    if "<tool_call>" in source and not _XML_ARGUMENTS.search(source):
        return ToolFormat.HERMES
    if _NAME_AND_PARAMETERS.search(source):
        return ToolFormat.LLAMA
    return ToolFormat.JSON
