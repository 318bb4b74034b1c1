"""Languages that an output can be held to.

Plain values; whether one can be held to the router decides.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON text that is valid by a schema."""

    schema_json: str
    """The text of the JSON Schema."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that a regular expression matches whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """A text of a grammar in Lark's notation."""

    lark: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these texts."""

    texts: tuple[str, ...]


Constraint = JsonSchema | JsonObject | Regex | Grammar | Choice
