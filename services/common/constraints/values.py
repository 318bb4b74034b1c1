"""A constraint as a value, and its sizes checked as `sampling.proto` states them.

Knows no grammar: whether a pattern or a schema makes sense is `grammars`' to say.
"""

from dataclasses import dataclass
from enum import Enum

from baton.errors import InvalidRequest
from baton.v1 import sampling_pb2

MAX_SCHEMA_BYTES = 65_536
MAX_REGEX_BYTES = 8_192
MAX_GRAMMAR_BYTES = 65_536
MAX_CHOICES = 256
MAX_CHOICE_BYTES = 65_536
"""Of all texts together."""


class Kind(Enum):
    """How a language is told; the values are the message's fields."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICE = "choice"


_MOST_BYTES = {
    Kind.JSON_SCHEMA: MAX_SCHEMA_BYTES,
    Kind.REGEX: MAX_REGEX_BYTES,
    Kind.GRAMMAR: MAX_GRAMMAR_BYTES,
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that an output is held to."""

    kind: Kind
    text: str = ""
    """The schema, pattern or grammar."""
    texts: tuple[str, ...] = ()
    """Of a CHOICE."""

    def field(self, path: str) -> str:
        """Path of what tells the language; `path` is the constraint's."""
        return f"{path}.{self.kind.value}" + (".texts" if self.kind is Kind.CHOICE else "")


def constraint_of(message: sampling_pb2.SamplingParams) -> Constraint | None:
    """The constraint in `message`, as it came; None where it has none."""
    if not message.HasField("constraint"):
        return None
    told = message.constraint
    match told.WhichOneof("kind"):
        case "json_schema":
            return Constraint(Kind.JSON_SCHEMA, told.json_schema)
        case "json_object":
            return Constraint(Kind.JSON_OBJECT) if told.json_object else None
        case "regex":
            return Constraint(Kind.REGEX, told.regex)
        case "grammar":
            return Constraint(Kind.GRAMMAR, told.grammar)
        case "choice":
            return Constraint(Kind.CHOICE, texts=tuple(told.choice.texts))
    return None


def constraint_message(constraint: Constraint | None) -> sampling_pb2.Constraint | None:
    """The inverse of `constraint_of`."""
    if constraint is None:
        return None
    match constraint.kind:
        case Kind.JSON_OBJECT:
            return sampling_pb2.Constraint(json_object=True)
        case Kind.CHOICE:
            choice = sampling_pb2.TextChoice(texts=constraint.texts)
            return sampling_pb2.Constraint(choice=choice)
        case Kind.JSON_SCHEMA:
            return sampling_pb2.Constraint(json_schema=constraint.text)
        case Kind.REGEX:
            return sampling_pb2.Constraint(regex=constraint.text)
        case Kind.GRAMMAR:
            return sampling_pb2.Constraint(grammar=constraint.text)


def check_constraint(path: str, constraint: Constraint) -> None:
    """Raises InvalidRequest, naming the field, where the constraint is too large or empty."""
    field = constraint.field(path)
    if constraint.kind is Kind.CHOICE:
        _check_choice(field, constraint.texts)
    elif (most := _MOST_BYTES.get(constraint.kind)) is not None:
        size = len(constraint.text.encode("utf-8"))
        if size == 0:
            raise InvalidRequest(field, "is empty")
        if size > most:
            raise InvalidRequest(field, f"{size} bytes are more than {most}")


def _check_choice(field: str, texts: tuple[str, ...]) -> None:
    if not 1 <= len(texts) <= MAX_CHOICES:
        raise InvalidRequest(field, f"must hold 1 to {MAX_CHOICES} texts, not {len(texts)}")
    for index, text in enumerate(texts):
        if not text:
            raise InvalidRequest(f"{field}[{index}]", "is empty")
    size = sum(len(text.encode("utf-8")) for text in texts)
    if size > MAX_CHOICE_BYTES:
        raise InvalidRequest(field, f"{size} bytes in all are more than {MAX_CHOICE_BYTES}")
