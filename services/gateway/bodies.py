"""Reads a request's body: not more than is allowed, as JSON, as the schema has it."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from services.gateway.errors import HttpError
from services.gateway.gone import ClientGone

_READ_S = 60.0
_JSON = ("application/json", "")
_MAX_MESSAGE = 300
B = TypeVar("B", bound=BaseModel)


async def read_body(request: Request, kind: type[B], limit: int, wrong_shape: int = 400) -> B:
    """The body as a `kind`. Raises HttpError: 413 where it is larger than `limit` bytes, 415 where
    it says that it is no JSON, 400 where it is none, `wrong_shape` where it isn't a `kind`."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in _JSON:
        raise HttpError(
            415, f"the body must be application/json, not {media_type!r:.60}", "wrong_media_type"
        )
    try:
        return kind.model_validate_json(await _read(request, limit))
    except ValidationError as error:
        raise _problem(error, wrong_shape) from None


async def _read(request: Request, limit: int) -> bytes:
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(_READ_S):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise HttpError(408, f"the body did not come within {_READ_S:g} s", "timeout") from None
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"the body is larger than {limit} bytes", "body_too_large")


def _problem(error: ValidationError, wrong_shape: int) -> HttpError:
    """The first thing that is wrong, in words."""
    found = error.errors(include_url=False, include_input=False, include_context=True)[0]
    message = found["msg"].removeprefix("Value error, ")[:_MAX_MESSAGE]
    if found["type"] == "json_invalid":
        return HttpError(400, f"the body is not JSON: {message}", "invalid_json")
    param = path_of(found["loc"])
    if not param:
        return HttpError(wrong_shape, f"the body: {message}", "invalid_request")
    return HttpError(wrong_shape, f"{param}: {message}", "invalid_request", param)


def path_of(location: Sequence[Any]) -> str:
    """A place in a body as a path, such as `messages[0].role`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _is_branch(str(part)):
            path += f".{part}" if path else str(part)
    return path


def _is_branch(part: str) -> bool:
    """Whether it names a branch of a union, which no body has."""
    return "[" in part
