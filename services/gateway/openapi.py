"""The app's description at /openapi.json: bodies, answers, and errors of every route."""

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from services.gateway import answers, schemas

_REF = "#/components/schemas/{model}"
_BODIES = {
    "CompletionRequest": (schemas.CompletionRequest, answers.CompletionAnswer),
    "ChatRequest": (schemas.ChatRequest, answers.ChatAnswer),
    "TokenizeRequest": (schemas.TokenizeRequest, answers.TokenizeAnswer),
    "DetokenizeRequest": (schemas.DetokenizeRequest, answers.DetokenizeAnswer),
}
_STREAMS = ("CompletionRequest", "ChatRequest")
_ERRORS = {
    400: "The request can never work; `param` names the field.",
    401: "No key, or one that is not known.",
    403: "The key does not allow this.",
    404: "The model is not served.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "No room now, or a target can't be held; Retry-After says when to try again.",
    500: "A bug.",
    503: "No worker, or the gateway stops; Retry-After says when to try again.",
    504: "A deadline passed.",
}
_WRONG_SHAPE = "The body does not have the right shape."


def errors_of(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The descriptions of these errors; of all where none is named."""
    return {
        status: {
            "description": _ERRORS.get(status, _WRONG_SHAPE),
            "content": {"application/json": {"schema": _ref("ErrorAnswer")}},
        }
        for status in statuses or _ERRORS
    }


def documented(body: str, *further: int) -> dict[str, Any]:
    """How a route with that body is described."""
    answer = _BODIES[body][1].__name__
    content: dict[str, Any] = {"application/json": {"schema": _ref(answer)}}
    if body in _STREAMS:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "responses": {
            200: {"description": "The answer.", "content": content},
            **errors_of(*_ERRORS, *further),
        },
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _ref(body)}},
            }
        },
    }


def answered(model: type[Any]) -> dict[int | str, dict[str, Any]]:
    """The description of an answer."""
    schema = _ref(model.__name__)
    return {
        200: {"description": "The answer.", "content": {"application/json": {"schema": schema}}}
    }


def describe(app: FastAPI) -> None:
    """Adds the schemas that routes refer to."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = made()
            schemas_of = described.setdefault("components", {}).setdefault("schemas", {})
            schemas_of |= _schemas()
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def _schemas() -> dict[str, Any]:
    bodies = [(body, "validation") for body, _ in _BODIES.values()]
    told = [(answer, "serialization") for _, answer in _BODIES.values()]
    others = [(one, "serialization") for one in answers.OTHERS]
    _, found = models_json_schema([*bodies, *told, *others], ref_template=_REF)  # type: ignore[list-item]
    defined: dict[str, Any] = found.get("$defs", {})
    return defined


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(model=name)}
