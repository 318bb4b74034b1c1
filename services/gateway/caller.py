"""Who calls: the ids of a request, and what is passed on to routers with it."""

import re
import secrets
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers

from baton import errors, naming
from services.common.telemetry import context

_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,1024}")
_UNIQUE_BYTES = 3


@dataclass(frozen=True, slots=True)
class Caller:
    """One HTTP request, as far as routers are told of it."""

    shown_id: str
    """The client's own id of it, or ours where it gave none that can be used."""
    request_id: str
    """The id of the generation: no two have the same, whatever clients send."""
    authorization: str

    @classmethod
    def of(cls, headers: Headers) -> "Caller":
        """Raises Unauthenticated for a header that can't be passed on."""
        shown = headers.get("x-request-id", "")
        request_id = naming.new_id("req")
        if _ID.fullmatch(shown):
            request_id = f"{shown}.{secrets.token_hex(_UNIQUE_BYTES)}"
        authorization = headers.get("authorization", "").strip()
        if authorization and not _PRINTABLE.fullmatch(authorization):
            raise errors.Unauthenticated("the Authorization header is not a key")
        return cls(shown if _ID.fullmatch(shown) else request_id, request_id, authorization)

    def metadata(self) -> dict[str, str]:
        """What goes with a call to a router: the key, and the trace that it belongs to."""
        told = {"authorization": self.authorization} if self.authorization else {}
        return told | {key: str(value) for key, value in context.inject()}


def caller_of(request: Any) -> Caller:
    """The caller that the doorway found."""
    found: Caller = request.scope["baton.caller"]
    return found
