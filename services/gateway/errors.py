"""Errors as OpenAI's clients know them: a status, and `{"error": {...}}`.

The fields that routers name are given the names of the HTTP body. Knows no routes.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baton import errors

Names = Sequence[tuple[str, str]]
"""Paths of the wire's fields, and what stands for them in a body; the first that fits counts."""

COMMON: Names = (
    ("sampling.", ""),
    ("request_id", "x-request-id"),
)


class HttpError(Exception):
    """An error that HTTP knows and the wire does not."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class Problem:
    """An error, ready to be sent."""

    status: int
    message: str
    kind: str
    param: str | None
    code: str | None
    retry_after: float | None = None

    def body(self) -> dict[str, Any]:
        """What goes into an answer, or into a stream that has begun."""
        told = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": told}

    def headers(self) -> dict[str, str]:
        """What goes with it."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


_KINDS: dict[type[errors.BatonError], tuple[int, str]] = {
    errors.InvalidRequest: (400, "invalid_request_error"),
    errors.Unauthenticated: (401, "authentication_error"),
    errors.PermissionDenied: (403, "permission_error"),
    errors.NotFound: (404, "invalid_request_error"),
    errors.Exhausted: (429, "rate_limit_error"),
    errors.Unavailable: (503, "server_error"),
    errors.DeadlineExceeded: (504, "server_error"),
    errors.Cancelled: (503, "server_error"),  # not by the client, who is there: a router stopped
}
_CODES = {"UNKNOWN_MODEL": "model_not_found", "UNAUTHENTICATED": "invalid_api_key"}
_RETRIED = (429, 503)
_RETRY_AFTER_S = 1.0


def problem_of(error: errors.BatonError, names: Names = ()) -> Problem:
    """A router's error, in the terms of a body."""
    status, kind = _KINDS.get(type(error), (500, "server_error"))
    param = None if error.field is None else renamed(error.field, names)
    message = error.message
    if error.field and param and message.startswith(f"{error.field}: "):
        message = param + message[len(error.field) :]
    retry_after = error.retry_after
    if retry_after is None and status in _RETRIED:
        retry_after = _RETRY_AFTER_S
    code = _CODES.get(error.reason, error.reason.lower())
    return Problem(status, message, kind, param, code, retry_after)


def problem_of_http(error: HttpError) -> Problem:
    """An error of HTTP's own."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return Problem(error.status, error.message, kind, error.param, error.code)


def bad(param: str, message: str, code: str = "invalid_request") -> HttpError:
    """A 400 that names the field of the body."""
    return HttpError(400, f"{param}: {message}", code, param)


def renamed(field: str, names: Names) -> str:
    """A wire's field as the body calls it."""
    for wire, body in (*names, *COMMON):
        if field == wire or (field.startswith(wire) and _at_boundary(field, wire)):
            field = body + field[len(wire) :]
            if wire not in _PREFIXES:
                break
    return re.sub(r"\.arguments_json$", ".function.arguments", field)


_PREFIXES = frozenset({"sampling."})


def _at_boundary(field: str, prefix: str) -> bool:
    return prefix.endswith(".") or field[len(prefix)] in ".["
