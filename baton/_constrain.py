"""From constraints to messages of the wire, for both clients."""

from typing import Any

from baton._checks import kind_of, to_sequence, to_text
from baton.constraints import Choice, Grammar, JsonObject, JsonSchema, Regex
from baton.v1 import sampling_pb2

_PATH = "sampling.constraint"


def to_constraint(constraint: Any) -> sampling_pb2.Constraint:
    """The message for a constraint. Raises TypeError for anything else."""
    match constraint:
        case JsonSchema(text):
            found = to_text("constraint.schema_json", f"{_PATH}.json_schema", text)
            return sampling_pb2.Constraint(json_schema=found)
        case JsonObject():
            return sampling_pb2.Constraint(json_object=True)
        case Regex(text):
            found = to_text("constraint.pattern", f"{_PATH}.regex", text)
            return sampling_pb2.Constraint(regex=found)
        case Grammar(text):
            found = to_text("constraint.lark", f"{_PATH}.grammar", text)
            return sampling_pb2.Constraint(grammar=found)
        case Choice(texts):
            names = [f"choice.texts[{i}]" for i in range(len(to_sequence("texts", texts)))]
            known = [
                to_text(f"constraint.{at}", f"{_PATH}.{at}", text)
                for at, text in zip(names, texts, strict=True)
            ]
            return sampling_pb2.Constraint(choice=sampling_pb2.TextChoice(texts=known))
    raise TypeError(
        f"constraint: expected a baton.constraints.Constraint, got {kind_of(constraint)}"
    )
