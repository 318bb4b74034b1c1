"""From the fields that all generations share to the client's options.

Knows no routes; what depends on the model, routers check.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from baton.client import GenerateOptions
from baton.constraints import Choice, Constraint, Grammar, JsonObject, JsonSchema, Regex
from services.gateway.errors import HttpError, Names, bad
from services.gateway.fields import UnknownField, check_extra
from services.gateway.schemas import Body, Generating, ResponseFormat, StructuredOutputs

_SAME = (
    "temperature", "top_p", "min_p", "n", "stop", "stop_token_ids", "min_tokens",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words", "request_class",
    "ttft_target", "itl_target", "priority", "model",
)  # fmt: skip
_KINDS = ("json_schema", "json_object", "regex", "choice.texts", "choice", "grammar")


def check_fields(body: Body) -> None:
    """Refuses fields that can't be ignored. Raises HttpError."""
    try:
        check_extra(body.model_extra)
    except UnknownField as error:
        raise bad(error.name, error.message, "unknown_field") from None


def shared_options(body: Generating, metadata: Mapping[str, str]) -> GenerateOptions:
    """The options that mean the same. Raises HttpError."""
    check_fields(body)
    options: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    if body.top_k is not None:
        options["top_k"] = max(0, body.top_k)
    if body.seed is not None:
        options["seed"] = body.seed % 2**64
    options["ignore_eos"] = bool(body.ignore_eos)
    if body.logit_bias is not None:
        options["logit_bias"] = {_token_id(key): bias for key, bias in body.logit_bias.items()}
    if body.stream_options is not None and not body.stream:
        raise bad("stream_options", "is only for streams")
    _, options["constraint"] = constraint_of(body)
    options["metadata"] = metadata
    return cast(GenerateOptions, options)


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise bad("logit_bias", f"{key!r:.40} is not a token id")
    return int(key)


def constraint_of(body: Generating) -> tuple[str, Constraint | None]:
    """The field that says what the output must be, and what it says."""
    guided = StructuredOutputs(
        json_=body.guided_json,
        regex=body.guided_regex,
        choice=body.guided_choice,
        grammar=body.guided_grammar,
    )
    found = [
        *_of_format(body.response_format),
        *_of_outputs("structured_outputs.", body.structured_outputs),
        *_of_outputs("guided_", guided),
    ]
    if len(found) > 1:
        raise bad(found[1][0], f"{found[0][0]} says already what the output must be")
    return found[0] if found else ("", None)


def constraint_names(body: Generating, otherwise: str) -> Names:
    """What stands for the wire's constraint: one field, where the wire has one for each kind.
    `otherwise`: what asks for it where none of the fields for that does."""
    field = constraint_of(body)[0] or otherwise
    wire = "sampling.constraint"
    return (*((f"{wire}.{kind}", field) for kind in _KINDS), (wire, field))


def _of_format(wanted: ResponseFormat | None) -> list[tuple[str, Constraint]]:
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        return [("response_format", JsonObject())]
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise bad("response_format.json_schema.schema", "is missing")
    name = "response_format.json_schema.schema"
    return [(name, JsonSchema(json_text(name, wanted.json_schema.schema_)))]


def _of_outputs(prefix: str, wanted: StructuredOutputs | None) -> list[tuple[str, Constraint]]:
    found: list[tuple[str, Constraint]] = []
    if wanted is None:
        return found
    if wanted.json_ is not None:
        name = f"{prefix}json"
        text = wanted.json_ if isinstance(wanted.json_, str) else json_text(name, wanted.json_)
        found.append((name, JsonSchema(text)))
    if wanted.json_object:
        found.append((f"{prefix}json_object", JsonObject()))
    if wanted.regex is not None:
        found.append((f"{prefix}regex", Regex(wanted.regex)))
    if wanted.choice is not None:
        found.append((f"{prefix}choice", Choice(tuple(wanted.choice))))
    if wanted.grammar is not None:
        found.append((f"{prefix}grammar", Grammar(wanted.grammar)))
    return found


def json_text(name: str, value: Any) -> str:
    """A part of the body as JSON again, with keys in the client's order."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"{name}: {error}", "invalid_request", name) from None
