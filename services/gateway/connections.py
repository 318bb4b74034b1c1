"""One connection to a client: uvicorn's own, but the head of a request may neither take for ever
nor be of any size, and what is no HTTP is answered as every other error is.

Knows no routes. Bodies have limits of their own, where they are read.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.gateway.errors import HttpError, problem_of_http

HEAD_S = 30.0
"""Longest time from the connection, or from a later request's first byte, to its head's end."""
REST_S = 10.0
"""Longest time that a body may take which is answered already and that nobody reads."""
MAX_HEAD_BYTES = 64 * 1024
_NO_HTTP = HttpError(400, "this is not HTTP", "invalid_http")
_TOO_LARGE = HttpError(431, f"the headers are over {MAX_HEAD_BYTES} bytes", "headers_too_large")


class Connection(HttpToolsProtocol):
    """A protocol for `uvicorn.Config(http=...)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._problem = _NO_HTTP
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Whoever connects has to say what for."""
        super().connection_made(transport)
        self._wait(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """More of a request; a head that is not over and too large already ends the connection."""
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._clock is None:
                self._wait(HEAD_S)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """The head is over. What is raised makes the parser say that this is not HTTP."""
        self._stop_waiting()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._problem = _TOO_LARGE
            raise ValueError(_TOO_LARGE.message)
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next head may come; it is waited for once it begins, or where the answer was there
        before the request's end."""
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0
        if self._clock is not None:
            self._stop_waiting()
            self._wait(HEAD_S)

    def on_response_complete(self) -> None:
        """What is left of the request's body is no more than waited for, so that a client that
        sends it first can read the answer."""
        super().on_response_complete()
        if self.cycle.response_complete and not self._in_head:
            self._wait(REST_S)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Uvicorn's answer to what can't be parsed."""
        self._refuse(self._problem)

    def _refuse(self, error: HttpError) -> None:
        body = json.dumps(problem_of_http(error).body()).encode()
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _wait(self, longest_s: float) -> None:
        self._clock = self.loop.call_later(longest_s, self._give_up)

    def _give_up(self) -> None:
        self._clock = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
