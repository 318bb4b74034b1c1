"""Whose key may see the page's data: a router says so, and is believed for some seconds."""

import time
from collections.abc import Callable, Sequence
from hashlib import sha256

from baton.errors import PermissionDenied, Unauthenticated, Unavailable
from services.gateway.page.flights import Flights
from services.gateway.page.upstream import Key, Upstream

CHECKED_S = 10.0
MAX_KEYS = 256

Clock = Callable[[], float]


class Access:
    """Keys that a router accepted lately, by their hashes. For one event loop."""

    def __init__(self, routers: Sequence[Upstream], monotonic: Clock = time.monotonic) -> None:
        self._routers = routers
        self._monotonic = monotonic
        self._accepted: dict[bytes, float] = {}
        self._flights: Flights[None] = Flights()

    async def check(self, key: Key) -> None:
        """Returns where the key is an operator's, or none is needed.

        Raises Unauthenticated or PermissionDenied where it isn't, Unavailable where no router
        says so.
        """
        digest = sha256(key.encode(errors="surrogateescape")).digest()
        if self._accepted.get(digest, 0.0) <= self._monotonic():
            await self._flights.join(digest, lambda: self._ask(key, digest))

    def forget(self) -> None:
        """Every key is to be checked again."""
        self._accepted.clear()

    async def close(self) -> None:
        """Ends checks under way."""
        await self._flights.close()

    async def _ask(self, key: Key, digest: bytes) -> None:
        problem: Exception = Unavailable("no router is configured")
        for router in self._routers:
            try:
                await router.requests(key, after=0, limit=1)
            except (Unauthenticated, PermissionDenied):
                self._accepted.pop(digest, None)
                raise
            except Exception as error:  # noqa: BLE001 - the next router may answer
                problem = error
            else:
                self._remember(digest)
                return
        raise problem

    def _remember(self, digest: bytes) -> None:
        self._accepted.pop(digest, None)
        while len(self._accepted) >= MAX_KEYS:
            del self._accepted[next(iter(self._accepted))]
        self._accepted[digest] = self._monotonic() + CHECKED_S
