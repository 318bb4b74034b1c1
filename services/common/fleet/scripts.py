"""Runs the fleet's Lua scripts in Redis, each within a deadline.

Every script is safe to run twice, so a connection that broke is tried again once. Knows the
scripts' files and keys, not what they mean.
"""

import asyncio
import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any, Final

from redis import asyncio as redis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from baton.errors import InternalError, Unavailable

Argument = str | bytes | int

_KEYS: Final = (
    "clock", "records", "states", "beats", "claims", "leases", "queue", "tickets", "turns",
    "routers", "rooms:prefill", "rooms:decode", "wants:prefill", "wants:decode", "sums",
    "streams", "since", "owned", "work", "spans", "clocks", "budget",
    "pending", "limits", "demand", "kept",
)  # fmt: skip
"""In the order in which common.lua names them."""
_SHARED: Final = ("common", "workers", "queue")
"""Put before every script."""

_AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    TimeoutError,
    OSError,
)
_SERVER_STATE = re.compile(r"[A-Z]{3,} ")
"""Begins errors by which Redis tells its state (MISCONF, BUSY...); a script's own do not."""
_MAX_CONNECTIONS = 16
_PROBES = 4
"""Connections that only probes use."""


@cache
def _source(name: str) -> tuple[str, str]:
    """A script's text and its SHA-1, by which Redis knows it."""
    folder = resources.files(__package__) / "lua"
    text = "".join((folder / f"{part}.lua").read_text() for part in (*_SHARED, name))
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """The scripts of one fleet. Not thread-safe; belongs to one event loop."""

    def __init__(self, url: str, fleet: str, timeout_s: float, connect_s: float) -> None:
        self._url = url
        self._prefix = f"{{baton:{fleet}}}:"
        self._keys = [self._prefix + key for key in _KEYS]
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._client = self._connect(_MAX_CONNECTIONS + _PROBES)
        self._places = asyncio.Semaphore(_MAX_CONNECTIONS)
        self.available = True
        """False from a failure on, until a probe succeeds."""

    async def run(self, name: str, *arguments: Argument, probe: bool = False) -> Any:
        """The answer of script `name`. Raises Unavailable when Redis does not give one in time.

        While Redis is away only a `probe` tries it; everything else fails at once.
        """
        if probe:
            return await self._run(name, arguments)
        async with self._places:  # a queue here is not a silence of Redis
            if not self.available:
                raise Unavailable("Redis does not answer", reason="REDIS_AWAY")
            return await self._run(name, arguments)

    async def _run(self, name: str, arguments: Sequence[Argument]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._evaluate_again(name, arguments)
        except _AWAY as error:
            self.available = False
            raise Unavailable(f"Redis does not answer: {error}", reason="REDIS_AWAY") from error
        except exceptions.RedisError as error:
            if not _SERVER_STATE.match(str(error)):
                raise InternalError(f"fleet script {name} failed: {error}") from error
            self.available = False
            raise Unavailable(f"Redis refuses: {error}", reason="REDIS_AWAY") from error
        self.available = True
        return answer

    async def _evaluate_again(self, name: str, arguments: Sequence[Argument]) -> Any:
        try:
            return await self._evaluate(name, arguments)
        except exceptions.ConnectionError:
            return await self._evaluate(name, arguments)

    async def _evaluate(self, name: str, arguments: Sequence[Argument]) -> Any:
        source, digest = _source(name)
        execute: Any = self._client.execute_command
        rest = [len(self._keys), *self._keys, *arguments]
        try:
            return await execute("EVALSHA", digest, *rest)
        except exceptions.NoScriptError:
            return await execute("EVAL", source, *rest)

    def stream(self, router_id: str) -> str:
        """The key of a router's stream of turns."""
        return f"{self._prefix}streams:{router_id}"

    def reader(self) -> redis.Redis:
        """A client with one connection of its own, for reads that block."""
        return self._connect(1)

    def _connect(self, connections: int) -> redis.Redis:
        """Deadlines are set around each use: the library's own (`socket_timeout`) can swallow
        a cancel, by way of `asyncio.wait_for`."""
        pool = redis.BlockingConnectionPool.from_url(
            self._url,
            max_connections=connections,
            timeout=self._timeout_s,
            socket_timeout=None,
            socket_connect_timeout=self._connect_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        return redis.Redis.from_pool(pool)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()
