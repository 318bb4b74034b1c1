"""Server-sent events: one answer as a stream of JSON texts, for as long as the client reads it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.gone import ClientGone, unless_gone

DONE = b"data: [DONE]\n\n"
STALL_S = 120.0
"""Longest time that a client may leave what was sent unread."""
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

Chunks = AsyncGenerator[bytes, None]


def event(value: Mapping[str, Any]) -> bytes:
    """One event."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return b"data: " + text.encode(errors="replace") + b"\n\n"


async def streamed(receive: Receive, chunks: Chunks, headers: Mapping[str, str]) -> "EventStream":
    """A stream whose first event has come; what is raised before that is the answer instead."""
    try:
        first = await unless_gone(receive, _next(chunks))
    except BaseException:
        await chunks.aclose()
        raise
    return EventStream(first, chunks, headers)


async def _next(chunks: Chunks) -> bytes:
    return await anext(chunks)


class EventStream(Response):
    """Sends events as they come. A client that goes away, or stops reading, ends `chunks`."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, chunks: Chunks, headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**_HEADERS, **headers})
        self._first = first
        self._chunks = chunks

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Without a length, which nobody knows."""
        self.body = b""
        super().init_headers(headers)
        self.raw_headers = [one for one in self.raw_headers if one[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async with aclosing(self._chunks):
            await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await _part(send, self._first, more=True)
        async for chunk in self._chunks:
            await _part(send, chunk, more=True)
        await _part(send, b"", more=False)


async def _part(send: Send, body: bytes, *, more: bool) -> None:
    try:
        async with asyncio.timeout(STALL_S):  # it waits for a slow client
            await send({"type": "http.response.body", "body": body, "more_body": more})
    except TimeoutError:
        raise ClientGone from None
