"""The fleet as this router sees it: a polled snapshot, and what the router knows beyond it.

Beyond it is: who failed a call just now, what was claimed since, and who was there before
Redis went away. Knows nothing of queues and requests.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from baton.errors import BatonError, Unavailable
from baton.naming import Incarnation, WorkerId
from baton.policy.fleet import ModelLimits, Usage, Worker
from baton.policy.placement import common_limits
from services.common.fleet.store import FleetSnapshot, FleetStore

log = logging.getLogger(__name__)

POLL_S = 0.2
AVOID_S = 0.25
"""How long a worker is avoided after its first failure; each further one doubles it."""
MAX_AVOID_S = 4.0

Clock = Callable[[], float]
"""Seconds that never go backward."""


@dataclass(slots=True)
class _Failures:
    count: int = 0
    until: float = 0.0


class FleetView:
    """Workers in rotation, and what is known of them. Not thread-safe; one event loop."""

    def __init__(
        self, store: FleetStore, poll_s: float = POLL_S, clock: Clock = time.monotonic
    ) -> None:
        self._store = store
        self._poll_s = poll_s
        self._clock = clock
        self._snapshot: FleetSnapshot | None = None
        self._workers: dict[WorkerId, Worker] = {}
        self._changed = asyncio.Event()
        self.revision = 0
        """Grows whenever another set of workers can be given work."""
        self._failures: dict[tuple[WorkerId, Incarnation], _Failures] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Takes the first snapshot (or not, when Redis is away) and goes on in the background."""
        await self.refresh()
        self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        """Stops polling. Does not close the store."""
        for task in (self._polling, self._refreshing):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    @property
    def redis_available(self) -> bool:
        """Whether Redis answered last time."""
        return self._store.available

    @property
    def snapshot(self) -> FleetSnapshot | None:
        """The last one; None: there was none yet."""
        return self._snapshot

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Workers in rotation; draining and failing ones too."""
        return tuple(self._workers.values())

    @property
    def candidates(self) -> tuple[Worker, ...]:
        """Workers that may be given work now."""
        now = self._clock()
        return tuple(
            worker
            for worker in self._workers.values()
            if not worker.draining and not self._avoided(worker, now)
        )

    def model(self) -> ModelLimits | None:
        """What the fleet serves, with the longest context that some placement can hold.
        None: no worker is there."""
        return common_limits(self._workers.values())

    async def refresh(self) -> None:
        """Takes a snapshot now, or shares the one that is under way. Never raises."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        await asyncio.shield(self._refreshing)

    async def change(self, timeout_s: float) -> None:
        """Waits until `revision` grows, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def report_failure(self, worker_id: WorkerId, incarnation: Incarnation) -> None:
        """A call got UNAVAILABLE: avoid the worker for a short, growing, capped time."""
        failures = self._failures.setdefault((worker_id, incarnation), _Failures())
        now = self._clock()
        if failures.until > now:
            return
        failures.until = now + min(MAX_AVOID_S, AVOID_S * 2.0**failures.count)
        failures.count = min(failures.count + 1, 16)
        self._changes()

    def report_success(self, worker_id: WorkerId, incarnation: Incarnation) -> None:
        """A call worked: its failures are forgotten."""
        self._failures.pop((worker_id, incarnation), None)

    def add_pending(self, worker: Worker, cost: Usage) -> None:
        """Counts a claim (or its end: a negative cost) that the last snapshot did not see."""
        known = self._workers.get(worker.worker_id)
        if known is not None and known.incarnation == worker.incarnation:
            self._workers[worker.worker_id] = replace(known, pending=known.pending + cost)

    def _changes(self) -> None:
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _avoided(self, worker: Worker, now: float) -> bool:
        failures = self._failures.get((worker.worker_id, worker.incarnation))
        return failures is not None and failures.until > now

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            await self.refresh()

    async def _refresh(self) -> None:
        try:
            self._apply(await self._store.snapshot())
        except Unavailable:
            return  # `redis_available` tells
        except BatonError as error:
            log.error("no snapshot of the fleet: %s", error)

    def _apply(self, snapshot: FleetSnapshot) -> None:
        workers = {worker.worker_id: worker for worker in snapshot.workers}
        if not snapshot.settled:
            workers = self._workers | workers
        if _membership(workers) != _membership(self._workers):
            self._changes()
        self._snapshot, self._workers = snapshot, workers
        known = {(worker.worker_id, worker.incarnation) for worker in workers.values()}
        self._failures = {key: value for key, value in self._failures.items() if key in known}


def _membership(
    workers: dict[WorkerId, Worker],
) -> frozenset[tuple[WorkerId, Incarnation, bool, Usage]]:
    return frozenset(
        (worker.worker_id, worker.incarnation, worker.draining, worker.capacity)
        for worker in workers.values()
    )
