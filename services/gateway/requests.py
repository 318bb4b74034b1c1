"""The requests in progress: how many there are, and whether more are let in.

Knows nothing of what a request does.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from baton import errors

_RETRY_AFTER_S = 1.0


class Requests:
    """Counts requests, and lets none in once it is closed. For one event loop."""

    def __init__(self) -> None:
        self._running = 0
        self._open = True
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Requests in progress."""
        return self._running

    @property
    def open(self) -> bool:
        """Whether more are let in."""
        return self._open

    @contextmanager
    def one(self) -> Iterator[None]:
        """A request runs inside the block. Raises Unavailable once closed."""
        if not self._open:
            raise errors.Unavailable(
                "the gateway is stopping", reason="DRAINING", retry_after=_RETRY_AFTER_S
            )
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def close(self, grace_s: float) -> bool:
        """Lets no more in and waits for those that run; False when some still do after
        `grace_s` seconds."""
        self._open = False
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
