"""A TCP proxy between two parties of a cluster: it delays, stalls, cuts or garbles what passes.

Runs on a thread of its own, so that a test's event loop, or the lack of one, does not matter.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from baton.local.child import ProcessSpec
from baton.local.plan import free_port
from baton.local.state import Kind

_CHUNK = 64 * 1024
_POLL_SECONDS = 0.01
_START_SECONDS = 10.0


class Proxy:
    """Passes bytes on to `target`: host:port, or unix:///path. Thread-safe."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = f"127.0.0.1:{free_port()}"
        self.connections = 0
        """Connections taken so far."""
        self._delay = 0.0
        self._stalled = False
        self._refusing = False
        self._garbling = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(_START_SECONDS), "the proxy did not start"

    def close(self) -> None:
        """Cuts everything and ends. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    @contextlib.contextmanager
    def delayed(self, seconds: float) -> Iterator[None]:
        """Every piece of data waits so long, in both directions."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Connections stay open and nothing passes; afterwards all that was held back does."""
        self._stalled = True
        try:
            yield
        finally:
            self._stalled = False

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Cuts every connection, and each new one at once."""
        self._refusing = True
        self.cut()
        try:
            yield
        finally:
            self._refusing = False

    @contextlib.contextmanager
    def garbling(self) -> Iterator[None]:
        """Flips a bit in every piece of data: no protocol survives that for long."""
        self._garbling = True
        try:
            yield
        finally:
            self._garbling = False
            self.cut()

    def cut(self) -> None:
        """Cuts every open connection; new ones are taken."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        host, _, port = self.address.rpartition(":")
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, host, int(port)))
        self._started.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            self._abort_all()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        except asyncio.CancelledError:
            pass  # the proxy closes; a handler that ends cancelled is logged as an error
        finally:
            self._writers -= both
            for one in both:
                one.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        scheme, _, path = self.target.rpartition("://")
        if scheme == "unix":
            return await asyncio.open_unix_connection(path)
        host, _, port = path.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._delay:
                    await asyncio.sleep(self._delay)
                while self._stalled:
                    await asyncio.sleep(_POLL_SECONDS)
                if self._garbling:
                    data = bytes([data[0] ^ 0x10]) + data[1:]
                writer.write(data)
                await writer.drain()
        if not writer.is_closing():
            with contextlib.suppress(OSError):
                writer.close()


def rewire(
    specs: Sequence[ProcessSpec], names: Sequence[str]
) -> tuple[list[ProcessSpec], dict[str, Proxy]]:
    """Specs whose processes reach the named ones by a proxy each, and the proxies, not started.

    The named ones are workers, transfer services, or `valkey`.
    """
    proxies = {spec.name: Proxy(spec.address) for spec in specs if spec.name in names}
    assert set(proxies) == set(names), f"no process is called {set(names) - set(proxies)}"
    swaps: dict[str, str] = {}
    for spec in specs:
        if spec.name not in proxies:
            continue
        address = proxies[spec.name].address
        if spec.kind is Kind.VALKEY:
            swaps[f"--redis={spec.address}"] = f"--redis=redis://{address}/0"
        elif spec.kind is Kind.TRANSFER:
            swaps[f"--transfer={spec.address}"] = f"--transfer={address}"
    return [_rewired(spec, swaps, proxies.get(spec.name)) for spec in specs], proxies


def _rewired(spec: ProcessSpec, swaps: dict[str, str], own: Proxy | None) -> ProcessSpec:
    command = [swaps.get(part, part) for part in spec.command]
    if own is not None and spec.kind is not Kind.VALKEY:
        command.append(f"--advertise={own.address}")
    return replace(spec, command=tuple(command))
