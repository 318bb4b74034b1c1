"""Holds tenants to their limits, over all routers of the fleet; gives back what they had.

Redis counts. While it is away this router goes by what it sees itself and takes its part of each
limit, so that a tenant is neither free of limits then nor shut out. A tenant without limits costs
nothing. Streams are renewed while they run: were this router to die, they would be free seconds
later.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from baton.errors import Exhausted, Unavailable
from baton.naming import new_id
from services.common.background import Background
from services.common.fleet.tenants import Entry, Stream, TenantStreams
from services.router.limits import Limit, LimitTable, Pacer
from services.router.register import Counters

log = logging.getLogger(__name__)

RENEW_S = 1.0
_FIRST_GUESS_S = 2.0
"""Of how long a stream lasts, before one ended."""
_WEIGHT = 0.1
"""Of the stream that ended last, in the mean of how long they last."""
_LEAST_RETRY_S, _MOST_RETRY_S = 0.1, 60.0

Clock = Callable[[], float]


class Tenants:
    """Belongs to one event loop, which runs already."""

    def __init__(
        self,
        table: LimitTable,
        shared: TenantStreams,
        background: Background,
        counters: Counters,
        *,
        renew_s: float = RENEW_S,
        clock: Clock | None = None,
    ) -> None:
        self._table = table
        self._shared = shared
        self._background = background
        self._counters = counters
        self._renew_s = renew_s
        self._clock = clock or asyncio.get_running_loop().time
        self._pacer = Pacer()
        self._routers = 1
        self._mean_s = _FIRST_GUESS_S
        self._running: Counter[str] = Counter()
        self._held: set[Stream] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Renews streams in the background, where there can be any."""
        if self._table.by_tenant:
            self._task = asyncio.create_task(self._renew())

    async def close(self) -> None:
        """Stops; what is being given back goes on in the background."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    @property
    def running(self) -> int:
        """Streams of tenants with limits."""
        return self._running.total()

    @asynccontextmanager
    async def stream(self, tenant: str) -> AsyncIterator[None]:
        """A request of the tenant runs inside the block. Raises Exhausted where it may not."""
        limit = self._table.of(tenant)
        if limit is None:
            yield
            return
        stream = tenant, new_id("stream")
        await self._enter(stream, limit)
        if limit.streams:
            self._held.add(stream)
        started_s = self._clock()
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
            self._mean_s += _WEIGHT * (self._clock() - started_s - self._mean_s)
            given_back = self._give_back(stream)
        if given_back is not None:  # who asks again once this one ended is not to find it here
            await asyncio.wait({given_back})

    async def _enter(self, stream: Stream, limit: Limit) -> None:
        try:
            entered = await self._shared.enter(stream, limit.interval_s, limit.burst, limit.streams)
        except Unavailable:
            self._enter_alone(stream[0], limit.share(self._routers))
            return
        except asyncio.CancelledError:  # Redis may have counted it
            self._leave_later(stream)
            raise
        self._routers = max(1, entered.routers)
        if entered.entry is Entry.TOO_FAST:
            raise self._too_fast(limit, entered.wait_s)
        if entered.entry is Entry.TOO_MANY:
            raise self._too_many(limit)

    def _enter_alone(self, tenant: str, limit: Limit) -> None:
        """What this router allows while Redis is away."""
        if limit.streams and self._running[tenant] >= limit.streams:
            raise self._too_many(limit)
        wait_s = self._pacer.wait_s(tenant, limit, self._clock())
        if wait_s:
            raise self._too_fast(limit, wait_s)

    def _too_fast(self, limit: Limit, wait_s: float) -> Exhausted:
        self._counters.limited += 1
        return Exhausted(
            f"the tenant's limit is {limit.per_second:g} requests a second",
            reason="RATE_LIMITED",
            retry_after=wait_s,
        )

    def _too_many(self, limit: Limit) -> Exhausted:
        """Nobody knows when a stream will end: the mean time until one of them does is told."""
        self._counters.limited += 1
        mean_s = self._mean_s / limit.streams
        return Exhausted(
            f"the tenant has {limit.streams} requests in progress, which is its limit",
            reason="TOO_MANY_STREAMS",
            retry_after=min(max(mean_s, _LEAST_RETRY_S), _MOST_RETRY_S),
        )

    def _give_back(self, stream: Stream) -> asyncio.Task[None] | None:
        """In the background; None where there is nothing to give back."""
        if stream not in self._held:
            return None
        self._held.discard(stream)
        return self._leave_later(stream)

    def _leave_later(self, stream: Stream) -> asyncio.Task[None]:
        return self._background.spawn(self._leave([stream]), "give a tenant's stream back")

    async def _leave(self, streams: list[Stream]) -> None:
        with contextlib.suppress(Unavailable):  # it ends by its time
            await self._shared.leave(streams)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            held = list(self._held)
            with contextlib.suppress(Unavailable):
                await self._shared.renew(held)
            # One that ended meanwhile may have been given back before it was renewed.
            ended = [stream for stream in held if stream not in self._held]
            await self._leave(ended)
