"""What this router's requests hold of workers' room, and its renewal.

A claim is a short lease. While the request lives it is renewed until its worker reports it as
taken; a router that dies frees its claims by saying nothing. Knows no queue and no plans.
"""

import asyncio
import contextlib
from dataclasses import dataclass

from baton.errors import BatonError, InternalError
from baton.naming import RequestId, WorkerId
from baton.policy.fleet import NOTHING, Claim, Usage, Worker
from services.common.fleet.store import FleetStore, Hold
from services.router.fleet import FleetView
from services.router.settled import settled

RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Held:
    """Room on one worker that a request has claimed."""

    worker: Worker
    claim: Claim
    cost: Usage
    recorded: bool
    """False: Redis was away, and only this router knows."""
    prompt_s: float = 0.0
    """Prompt work that comes with it."""

    @property
    def hold(self) -> Hold:
        return (self.worker.worker_id, self.claim)


class Claims:
    """All claims of one router. Not thread-safe; one event loop."""

    def __init__(self, store: FleetStore, view: FleetView, lease_s: float) -> None:
        self._store = store
        self._view = view
        self.lease_s = lease_s
        self._held: dict[RequestId, dict[Hold, Held]] = {}
        self._owed: set[Hold] = set()
        """Given back here, but Redis has not been told yet."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Renews in the background."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stops renewing, and gives back what is held still."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        for request_id in list(self._held):
            await self.release(request_id)

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    def held(self, request_id: RequestId) -> frozenset[WorkerId]:
        """Workers on which the request holds room."""
        return frozenset(worker_id for worker_id, _ in self._held.get(request_id, ()))

    def add(self, held: Held) -> None:
        """Keeps a claim alive from now on."""
        mine = self._held.setdefault(held.claim.request_id, {})
        if held.hold not in mine:
            self._view.add_pending(held.worker, held.cost, held.prompt_s)
        mine[held.hold] = held
        self._owed.discard(held.hold)

    async def release(
        self,
        request_id: RequestId,
        worker_id: WorkerId | None = None,
        attempt: int | None = None,
    ) -> None:
        """Gives back what the request holds (on one worker, of one attempt). Idempotent; raises
        nothing but its caller's cancel, and does its work all the same then."""
        mine = self._held.get(request_id, {})
        for hold in list(mine):
            if worker_id in (None, hold[0]) and attempt in (None, hold[1].attempt):
                held = mine.pop(hold)
                self._view.add_pending(held.worker, NOTHING - held.cost, -held.prompt_s)
                if held.recorded:
                    self._owed.add(hold)
        if not mine:
            self._held.pop(request_id, None)
        if self._owed:
            await settled(self._pay())

    def check_integrity(self) -> None:
        """Raises InternalError when something is held and given back at once, or by no one."""
        held = {hold for mine in self._held.values() for hold in mine}
        if held & self._owed or not all(self._held.values()):
            raise InternalError(f"claims: held {held}, to be given back {self._owed}")

    async def _pay(self) -> None:
        owed = tuple(self._owed)
        try:
            await self._store.release(owed)
        except BatonError:
            self._wake.set()
        else:
            self._owed.difference_update(owed)

    async def _renew(self) -> None:
        recorded = [
            hold for mine in self._held.values() for hold, held in mine.items() if held.recorded
        ]
        await self._store.renew(recorded, self.lease_s)

    async def _run(self) -> None:
        pause_s = self.lease_s / 3
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
                    await asyncio.sleep(RETRY_S)
            self._wake.clear()
            pause_s = self.lease_s / 3
            try:
                await self._renew()
            except BatonError:
                pause_s = RETRY_S
            if self._owed:
                await self._pay()
