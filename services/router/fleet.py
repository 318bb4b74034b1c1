"""The fleet as this router sees it: a polled snapshot, and what the router knows beyond it.

Beyond it is: who failed a call just now, what was claimed since, and who was there before
Redis went away. Knows nothing of queues and requests.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from statistics import fmean

from baton.errors import BatonError, Unavailable
from baton.naming import Incarnation, WorkerId, new_id
from baton.policy.fleet import ModelLimits, Role, Usage, Worker
from baton.policy.placement import common_limits
from baton.policy.roster import Roster
from services.common.fleet.store import FleetSnapshot, FleetStore
from services.router.losses import Losses

log = logging.getLogger(__name__)

POLL_S = 0.2
POLL_WORKER_S = 0.001
"""What each worker adds to the period from the 200th on: reading a snapshot costs by worker."""
MAX_POLL_S = 1.0
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
        self,
        store: FleetStore,
        poll_s: float = POLL_S,
        clock: Clock = time.monotonic,
        roles: Set[Role] = frozenset(Role),
    ) -> None:
        """`roles` are those without which the fleet is degraded."""
        self._store = store
        self._poll_s = poll_s
        self._clock = clock
        self._roles = roles
        self._seed = new_id("view")
        self._snapshot: FleetSnapshot | None = None
        self._roster = Roster()
        self._told_at = clock()
        """When the workers told what the roster has; later while Redis is away and it ages."""
        self._limits: ModelLimits | None = None
        self._decode_step_s = 0.0
        self._changed = asyncio.Event()
        self.revision = 0
        """Grows whenever another set of workers can be given work."""
        self._failures: dict[tuple[WorkerId, Incarnation], _Failures] = {}
        self._losses = Losses()
        self._refreshing: asyncio.Task[None] | None = None
        self._failing = False
        """Whether the last snapshot could not be used, which was told then."""
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
    def settled(self) -> bool:
        """Whether the last snapshot shows the whole fleet, and there is one."""
        return self._snapshot is not None and self._snapshot.settled

    @property
    def informed(self) -> bool:
        """Whether it knows of a worker, or that there is none."""
        return self.settled or self._limits is not None

    @property
    def roster(self) -> Roster:
        """Workers in rotation, failing ones too, with what was claimed on them since."""
        return self._roster

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All of them; draining ones too. Takes time by their number."""
        return tuple(self._roster)

    @property
    def candidates(self) -> tuple[Worker, ...]:
        """Workers that may be given work now. Takes time by the number of workers."""
        return tuple(one for one in self._roster if not one.draining and self.usable(one))

    def usable(self, worker: Worker) -> bool:
        """Whether the worker may be asked now: it has not just failed."""
        failures = self._failures.get((worker.worker_id, worker.incarnation))
        return failures is None or failures.until <= self._clock()

    @property
    def degraded(self) -> str:
        """What is not as it should be, in words; empty: nothing that is known."""
        if self._snapshot is None:
            return ""
        gone = {role for role in Role if not self._roster.has(role)}
        if gone == set(Role):
            return "no worker is there"
        if Role.DECODE in gone & self._roles:
            return "no decode worker is there: prefill workers serve both"
        if Role.PREFILL in gone & self._roles:
            return "no prefill worker is there: decode workers serve both"
        return ""

    @property
    def decode_step_s(self) -> float:
        """Mean seconds of the fleet's recent decode steps; 0: there were none."""
        return self._decode_step_s

    def model(self) -> ModelLimits | None:
        """What the fleet serves, with the longest context that some placement can hold.
        None: no worker is there."""
        return self._limits

    def lost(self, worker: Worker) -> asyncio.Event:
        """An event that is set once this incarnation is known to be gone: another one has its
        id, or it has been missing for `LOST_S` while Redis was well. One whose event nobody
        holds is not watched."""
        return self._losses.event(worker, self._roster.get(worker.worker_id))

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

    def add_pending(self, worker: Worker, cost: Usage, prompt_s: float = 0.0) -> None:
        """Counts a claim that the last snapshot did not see, or its end, with negative numbers."""
        known = self._roster.get(worker.worker_id)
        if known is not None and known.incarnation == worker.incarnation:
            self._roster.note(worker.worker_id, cost, prompt_s)

    def _changes(self) -> None:
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def _poll(self) -> None:
        while True:
            grown_s = min(MAX_POLL_S, POLL_WORKER_S * len(self._roster))
            await asyncio.sleep(max(self._poll_s, grown_s))
            await self.refresh()

    async def _refresh(self) -> None:
        try:
            self._apply(await self._store.snapshot())
            self._failing = False
        except Unavailable:  # `redis_available` tells
            self._losses.pause()
            self._age()
        except Exception as error:
            if not self._failing:
                bug = not isinstance(error, BatonError)
                log.error("no snapshot of the fleet, trying on: %s", error, exc_info=bug)
            self._failing = True

    def _apply(self, snapshot: FleetSnapshot) -> None:
        workers = {worker.worker_id: worker for worker in snapshot.workers}
        if not snapshot.settled:
            workers = {worker.worker_id: worker for worker in self._roster} | workers
        changed = _membership(workers.values()) != _membership(self._roster)
        self._snapshot, self._roster = snapshot, Roster(workers.values(), self._seed)
        self._told_at = self._clock()
        self._limits = common_limits(self._roster)
        self._decode_step_s = _mean_step_s(self._roster)
        self._losses.update(workers, self._told_at)
        known = {(worker.worker_id, worker.incarnation) for worker in workers.values()}
        self._failures = {key: value for key, value in self._failures.items() if key in known}
        if changed:
            self._changes()

    def _age(self) -> None:
        """While nobody tells how far workers got with their prompts, they go on with them."""
        now = self._clock()
        elapsed_s, self._told_at = now - self._told_at, now
        self._roster = Roster((_aged(one, elapsed_s) for one in self._roster), self._seed)


def _aged(worker: Worker, elapsed_s: float) -> Worker:
    backlog_s = worker.load.prompt_backlog_s
    rest_s = max(0.0, elapsed_s - backlog_s)
    return replace(
        worker,
        load=replace(worker.load, prompt_backlog_s=max(0.0, backlog_s - elapsed_s)),
        pending_prompt_s=max(0.0, worker.pending_prompt_s - rest_s),
    )


def _mean_step_s(workers: Iterable[Worker]) -> float:
    told = [worker.load.decode_step_s for worker in workers if worker.load.decode_step_s > 0]
    return fmean(told) if told else 0.0


def _membership(
    workers: Iterable[Worker],
) -> frozenset[tuple[WorkerId, Incarnation, bool, Usage]]:
    return frozenset(
        (worker.worker_id, worker.incarnation, worker.draining, worker.capacity)
        for worker in workers
    )
