"""What the gateway tells of the HTTP requests that it answers.

`install` puts it all into the app: what counts requests around it, outermost, and `/metrics`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from services.common.telemetry.metric import Reading, Source, counter, gauge, histogram
from services.common.telemetry.metrics import Metrics
from services.common.telemetry.tally import SECONDS_BUCKETS, Tallies

REQUESTS = counter(
    "baton_gateway_requests_total",
    "HTTP requests that ended, by route and by the answer's status; 499: its client went away.",
    *("route", "method", "code"),
)
DURATION = histogram(
    "baton_gateway_request_seconds", "From a request's arrival to the answer's last byte.", "route"
)
RUNNING = gauge("baton_gateway_running_requests", "HTTP requests in progress.")
STREAMS = gauge("baton_gateway_streams", "Answers that are being streamed (server-sent events).")
DISCONNECTS = counter(
    "baton_gateway_disconnects_total", "Clients that went away before their answer's end."
)
METRICS = (REQUESTS, DURATION, RUNNING, STREAMS, DISCONNECTS)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_GONE = 499

TRACE_HEADER = "x-baton-trace-id"
"""Of answers: the trace of the request, in hex. Those become examples of durations."""
PATH = "/metrics"
"""Not counted: a gateway that only tells its metrics is idle."""


class GatewayMetrics:
    """Counts of one gateway. Belongs to its event loop."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._duration = Tallies(SECONDS_BUCKETS)
        self._running = 0
        self._streams = 0
        self._disconnects = 0

    def source(self) -> Source:
        """Reads the metrics of this module."""
        return Source("gateway", self._read, METRICS)

    def middleware(self, app: App) -> App:
        """`app`, counted."""
        return partial(self._call, app)

    async def _call(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == PATH:
            await app(scope, receive, send)
            return
        exchange = _Exchange(self, receive, send)
        self._running += 1
        try:
            await app(scope, exchange.receive, exchange.send)
        finally:
            self._running -= 1
            self._streams -= exchange.streaming
            self._ended(scope, exchange)

    def _ended(self, scope: Scope, exchange: "_Exchange") -> None:
        gone = exchange.gone and not exchange.complete
        self._disconnects += gone
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        code = _GONE if gone else exchange.status
        self._requests[route, method, str(code)] += 1
        self._duration[(route,)].observe(time.monotonic() - exchange.began, exchange.trace_id)

    def stream_begins(self) -> None:
        """An answer turns out to be a stream."""
        self._streams += 1

    async def _read(self) -> list[Reading]:
        return [
            *(REQUESTS.at(count, *labels) for labels, count in self._requests.items()),
            *DURATION.each(self._duration),
            RUNNING.at(self._running),
            STREAMS.at(self._streams),
            DISCONNECTS.at(self._disconnects),
        ]


class _Exchange:
    """One request and its answer, watched as they pass."""

    def __init__(self, counts: GatewayMetrics, receive: Receive, send: Send) -> None:
        self.began = time.monotonic()
        self.status = 500
        """Until an answer begins: what the server makes of an error."""
        self.trace_id = b""
        """Once an answer begins that tells it; empty: none is known."""
        self.streaming = False
        self.gone = False
        self.complete = False
        self._counts = counts
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        message = await self._receive()
        self.gone |= message["type"] == "http.disconnect"
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = dict(message.get("headers", ()))
            self.trace_id = bytes.fromhex(headers.get(TRACE_HEADER.encode(), b"").decode())
            if _is_stream(headers) and not self.streaming:
                self.streaming = True
                self._counts.stream_begins()
        self.complete |= message["type"] == "http.response.body" and not message.get("more_body")
        try:
            await self._send(message)
        except OSError:
            self.gone = True
            raise


def _is_stream(headers: dict[Any, Any]) -> bool:
    return bytes(headers.get(b"content-type", b"")).startswith(b"text/event-stream")


def install(app: Starlette, metrics: Metrics) -> None:
    """Counts what `app` answers, and serves `metrics` at its `/metrics`. After all other
    middleware was added."""
    counts = GatewayMetrics()
    metrics.add(counts.source())

    async def answer(request: Request) -> Response:
        # On another thread: the values are read on this loop, which must go on meanwhile.
        accept = request.headers.get("accept", "")
        body, media_type = await asyncio.to_thread(metrics.text, accept)
        return Response(body, headers={"content-type": media_type})

    app.add_route(PATH, answer, include_in_schema=False)
    app.add_middleware(counts.middleware)
