"""One search for workers: a request's way from the queue to its claims.

    plan       which workers could hold the request (`baton.policy.placement`)
    join       the fleet's queue, over all routers
    turn       Redis gives it when the fleet has room and nobody is due earlier
    claim      all the room that is needed, at once, by compare-and-set

Whichever await is cancelled, nothing stays queued or claimed. Knows no prompts and makes no
calls to workers.
"""

import asyncio
import contextlib
from collections.abc import Set
from dataclasses import dataclass, replace

from baton.errors import BatonError, Exhausted, Unavailable
from baton.naming import Incarnation, WorkerId, new_id
from baton.policy.fleet import Demand, Role, Worker
from baton.policy.placement import Plan, pick_now, plans
from services.common.fleet.store import FleetStore, TicketId
from services.router.claims import Claims, Held
from services.router.fleet import Clock, FleetView
from services.router.settled import settled
from services.router.turns import RETRY_AFTER_S, Room, Turns

RECHECK_S = 0.25
"""How often a waiting request looks whether the fleet has changed."""
HOLD_S = 0.05
"""How long a turn that found no room is kept before it is given back."""
DIRECT_S = 0.02
"""How often the first in line looks for room while Redis is away."""
EXCLUDE_S = 1.0
"""How long an excluded worker is not asked: it may be the only one, and back by then."""

Excluded = Set[tuple[WorkerId, Incarnation]]
"""Workers that failed this request."""
Ways = tuple[tuple[Role, ...], ...]
"""Sets of roles, each of which would do, the best first."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What the searches of one router share."""

    store: FleetStore
    view: FleetView
    turns: Turns
    claims: Claims
    clock: Clock
    patience_s: float
    """How long a search waits for a worker to appear."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is looked for."""

    demand: Demand
    ways: Ways
    score_s: float
    limit: int | None
    """The queue takes the request only while fewer wait. None: always."""
    exclude: Excluded
    fingerprint: str | None = None
    """KV layout to prefer; another one comes only where no worker has it."""
    near: WorkerId | None = None
    """Worker to prefer among those with room."""


class Search:
    """Runs once. Not thread-safe; one event loop."""

    def __init__(self, desk: Desk, wish: Wish) -> None:
        self._desk = desk
        self._wish = wish
        self._ticket_id = TicketId(new_id("ticket"))
        self._exclude_until = desk.clock() + EXCLUDE_S
        self._hopeless_since: float | None = None
        self._held: tuple[Held, ...] = ()

    async def run(self) -> tuple[Worker, ...]:
        """Workers with room claimed on each, in the order of the roles of one of the ways.

        Raises Exhausted when too many wait or no worker is large enough, and Unavailable when
        no worker appears in time.
        """
        self._desk.turns.add(self._ticket_id, self._wish.score_s, self._wish.limit)
        try:
            while not self._held:
                await self._step()
        except BaseException:
            await settled(self._give_up())
            raise
        self._desk.turns.remove(self._ticket_id)
        return tuple(held.worker for held in self._held)

    async def _step(self) -> None:
        possible = self._plans()
        if not possible:
            await self._wait_for_fleet()
            return
        self._hopeless_since = None
        if not self._desk.store.available:
            await self._place_directly(possible)
            return
        with contextlib.suppress(Unavailable):  # the next step goes directly
            await self._wait_and_claim(possible[0])

    async def _wait_and_claim(self, plan: Plan) -> None:
        """Returns early when there may be another plan by now."""
        turns, view = self._desk.turns, self._desk.view
        revision = view.revision
        await turns.join(self._ticket_id, _room(plan))
        while not await turns.turn(self._ticket_id, RECHECK_S):
            queued = turns.is_queued(self._ticket_id) and self._desk.store.available
            if revision != view.revision or not queued:
                return
        if await self._claim():
            return
        await view.refresh()
        if not await self._claim():
            await asyncio.sleep(HOLD_S)

    async def _claim(self) -> bool:
        possible = self._plans()
        return bool(possible) and await settled(self._claim_one_of(possible))

    async def _claim_one_of(self, possible: tuple[Plan, ...]) -> bool:
        workers = await self._desk.store.claim(
            self._wish.demand.claim, possible, self._desk.claims.lease_s, self._ticket_id
        )
        if workers is None:
            return False
        self._take(workers, recorded=True)
        return True

    async def _place_directly(self, possible: tuple[Plan, ...]) -> None:
        """Without Redis: in the order of this router's tickets, by what it knows of the room."""
        if not self._desk.turns.is_first(self._ticket_id):
            await self._desk.turns.news(self._ticket_id, RECHECK_S)
            return
        for plan in possible:
            if workers := pick_now(plan):
                self._take(workers, recorded=False)
                return
        await asyncio.sleep(DIRECT_S)

    def _take(self, workers: tuple[Worker, ...], *, recorded: bool) -> None:
        demand = self._wish.demand
        self._held = tuple(
            Held(worker, demand.claim, demand.cost(worker.role), recorded) for worker in workers
        )
        for held in self._held:
            self._desk.claims.add(held)

    async def _give_up(self) -> None:
        queued = self._desk.turns.remove(self._ticket_id)
        claim = self._wish.demand.claim
        for held in self._held:
            await self._desk.claims.release(claim.request_id, held.worker.worker_id, claim.attempt)
        if queued:
            with contextlib.suppress(BatonError):  # a turn that nobody takes is given back
                await self._desk.store.leave([self._ticket_id])

    def _plans(self) -> tuple[Plan, ...]:
        """Plans that would work on an idle fleet; whether there is room now shows later."""
        workers = self._desk.view.candidates
        if self._desk.clock() < self._exclude_until:
            exclude = self._wish.exclude
            workers = tuple(
                worker
                for worker in workers
                if (worker.worker_id, worker.incarnation) not in exclude
            )
        preferred = tuple(
            worker for worker in workers if worker.layout_fingerprint == self._wish.fingerprint
        )
        return self._first_plans(preferred) or self._first_plans(workers)

    def _first_plans(self, workers: tuple[Worker, ...]) -> tuple[Plan, ...]:
        for roles in self._wish.ways:
            if found := plans(self._wish.demand, roles, workers):
                return tuple(_nearest_first(plan, self._wish.near) for plan in found)
        return ()

    async def _wait_for_fleet(self) -> None:
        """Out of the queue, where the request would only hold up others."""
        self._refuse_if_too_large()
        now = self._desk.clock()
        if self._hopeless_since is None:
            self._hopeless_since = now
        if now - self._hopeless_since >= self._desk.patience_s:
            names = " and ".join(role.value for role in self._wish.ways[-1])
            raise Unavailable(
                f"no {names} worker is there", reason="NO_WORKER", retry_after=RETRY_AFTER_S
            )
        with contextlib.suppress(Unavailable):
            await self._desk.turns.leave(self._ticket_id)
        await self._desk.view.change(RECHECK_S)

    def _refuse_if_too_large(self) -> None:
        snapshot = self._desk.view.snapshot
        workers = tuple(worker for worker in self._desk.view.workers if not worker.draining)
        roles = {worker.role for worker in workers}
        complete = any(roles.issuperset(way) for way in self._wish.ways)
        if snapshot and snapshot.settled and complete and not self._first_plans(workers):
            demand = self._wish.demand
            tokens = demand.prompt_tokens + demand.max_tokens
            raise Exhausted(
                f"no worker is large enough for {tokens} tokens", reason="NO_WORKER_FITS"
            )


def _nearest_first(plan: Plan, near: WorkerId | None) -> Plan:
    if near is None:
        return plan
    return tuple(
        replace(
            choice, workers=tuple(sorted(choice.workers, key=lambda one: one.worker_id != near))
        )
        for choice in plan
    )


def _room(plan: Plan) -> Room:
    tokens = {choice.role: choice.cost.kv_tokens for choice in plan}
    return Room(tokens.get(Role.PREFILL), tokens.get(Role.DECODE))
