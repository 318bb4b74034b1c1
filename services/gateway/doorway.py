"""Around the whole app: ids, the trace's first span, and no new requests once it stops."""

import logging
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton import errors
from services.common.gate import Gate
from services.common.telemetry import context, tracing
from services.gateway.caller import Caller
from services.gateway.errors import problem_of
from services.gateway.gone import ClientGone
from services.gateway.metrics import TRACE_HEADER

log = logging.getLogger("services.gateway")
_API = "/v1/"
_RETRY_AFTER_S = 1.0


class Doorway:
    """An ASGI middleware."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope["baton.caller"] = caller = Caller.of(Headers(scope=scope))
            if not scope["path"].startswith(_API):
                await self._app(
                    scope, receive, _with_headers(send, {"x-request-id": caller.shown_id})
                )
                return
            if not self._gate.open:
                raise errors.Unavailable(
                    "the gateway is stopping", reason="DRAINING", retry_after=_RETRY_AFTER_S
                )
            parent = context.extract(Headers(scope=scope).items())
            with self._gate.one(), context.attached(parent):
                await self._serve(scope, receive, send, caller)
        except errors.BatonError as error:
            problem = problem_of(error)
            await JSONResponse(problem.body(), problem.status, problem.headers())(
                scope, receive, send
            )

    async def _serve(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        attributes: dict[str, Any] = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "baton.request_id": caller.request_id,
        }
        with tracing.span("http", **attributes):
            headers = {
                "x-request-id": caller.shown_id,
                "x-baton-request-id": caller.request_id,
            }
            if trace_id := context.trace_id_of(context.current()).hex():
                headers[TRACE_HEADER] = trace_id
            try:
                await self._app(scope, receive, _with_headers(send, headers))
            except ClientGone:
                log.info(
                    "499 %s %s: %s went away", scope["method"], scope["path"], caller.request_id
                )


def _with_headers(send: Send, headers: dict[str, str]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(headers)
        await send(message)

    return sending
