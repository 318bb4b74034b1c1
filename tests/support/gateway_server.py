"""The gateway's app on a real port, in a thread of the test's process, over a scripted router."""

import asyncio
import threading

from baton.client import AsyncClient
from services.common.gate import Gate
from services.gateway.app import make_app
from services.gateway.server import HttpServer
from services.gateway.settings import GatewaySettings
from tests.support.fake_router import FakeRouter


class GatewayServer:
    """Runs while it is entered."""

    def __init__(self, router: FakeRouter) -> None:
        self._settings = GatewaySettings(
            _cli_parse_args=[], router=router.address, address="127.0.0.1:0"
        )
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.url = ""

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncClient(self._settings.router) as client:
            app = make_app(client, self._settings, Gate())
            async with HttpServer(app, self._settings.address) as server:
                self.url = f"http://{server.address}"
                self._started.set()
                await self._stop.wait()

    def __enter__(self) -> "GatewayServer":
        self._thread.start()
        assert self._started.wait(10), "the gateway did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
