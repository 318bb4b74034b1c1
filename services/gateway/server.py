"""The HTTP server around the app: a socket, uvicorn, and an end that waits for nobody long."""

import asyncio
import socket
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import uvicorn
from fastapi import FastAPI

from services.gateway.connections import Connection

_END_S = 1
"""For responses that remain after the grace."""
_KEEP_ALIVE_S = 75
_BACKLOG = 1024


class HttpServer:
    """Serves `app` at `address` (port 0 takes a free one) inside an `async with`.

    Entering raises OSError where the address can't be listened on. Signals are the caller's.
    """

    def __init__(self, app: FastAPI, address: str, **options: Any) -> None:
        """`options` go to uvicorn: certificates."""
        self._address = address
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=Connection,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_END_S,
                **options,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.address = address

    async def __aenter__(self) -> Self:
        listening = _listen(self._address)
        host = self._address.rpartition(":")[0]
        self.address = f"{host}:{listening.getsockname()[1]}"
        # Not its `serve`, which takes over the signals.
        self._task = asyncio.create_task(self._server._serve([listening]))
        while not self._server.started:
            await asyncio.wait([self._task], timeout=0.01)
            if self._task.done():
                listening.close()
                await self._task
                raise OSError(f"cannot serve HTTP at {self._address}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, int(port)))
        listening.listen(_BACKLOG)
    except (OSError, ValueError) as error:
        listening.close()
        raise OSError(f"cannot listen on {address}: {error}") from error
    return listening
