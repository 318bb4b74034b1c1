"""One search for workers: a request's way from the queue to its claims.

    plan       which workers could hold the request, and who does what (`planning`)
    join       the fleet's queue, over all routers; or be refused, once (`admission`)
    turn       Redis gives it when the fleet has room and nobody is due earlier
    claim      all the room that is needed, at once, by compare-and-set

Whichever await is cancelled, nothing stays queued or claimed. Knows no prompts and makes no
calls to workers.
"""

import asyncio
import contextlib
import math
from collections.abc import Set
from dataclasses import dataclass, replace

from baton.errors import BatonError, Exhausted, Unavailable
from baton.naming import Incarnation, WorkerId, new_id
from baton.policy.admission import MIN_RETRY_S, Outlook
from baton.policy.fleet import Demand, Role, Task, Worker
from baton.policy.placement import Candidate, Plan, Usable, pick_now, prompt_time_s
from baton.policy.score import Order
from services.common.fleet.store import FleetStore, Need, Place, TicketId
from services.router.admission import Admission, Promises
from services.router.claims import Claims, Held
from services.router.fleet import Clock, FleetView
from services.router.means import Means
from services.router.planning import Kind, Options, Planner
from services.router.settled import settled
from services.router.turns import RETRY_AFTER_S, Room, Terms, Turns

RECHECK_S = 0.25
"""How often a waiting request looks whether the fleet has changed."""
RECHECK_WAITING_S = 0.001
"""What each waiting request adds to that: looking costs by request."""
HOLD_S = 0.05
"""How long a turn that found no room is kept before it is given back; doubles every time."""
DIRECT_S = 0.02
"""How often the first in line looks for room while Redis is away."""
EXCLUDE_S = 1.0
"""How long an excluded worker is not asked: it may be the only one, and back by then."""

Excluded = Set[tuple[WorkerId, Incarnation]]
"""Workers that failed this request."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What the searches of one router share."""

    store: FleetStore
    view: FleetView
    planner: Planner
    means: Means
    turns: Turns
    claims: Claims
    promises: Promises
    clock: Clock
    patience_s: float
    """How long a search waits for a worker to appear."""

    def outlook(self, plan: Plan) -> Outlook:
        """The fleet as a request meets it that goes by `plan`."""
        stay_s = self.means.stay_s(self.view.decode_step_s)
        return self.view.roster.outlook(plan[0].role, plan[-1].role, stay_s)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is looked for."""

    demand: Demand
    kind: Kind
    order: Order
    terms: Terms
    exclude: Excluded
    admission: Admission | None = None
    """On what condition it comes into the queue. None: on none."""
    lost_s: float = math.inf
    """How long it waits at most: after that it is refused, since it asked for no later answer."""
    strict_s: float = math.inf
    """How long it insists on its inter-token latency; any worker is better than none after."""
    fingerprint: str | None = None
    """KV layout to prefer; another one comes only where no worker has it."""
    near: WorkerId | None = None
    """Worker to prefer among those with room."""


@dataclass(frozen=True, slots=True)
class Found:
    """Claimed workers, and what was expected."""

    tasks: tuple[Task, ...]
    """What each is to do; the first computes the prompt, the last goes on."""
    candidates: tuple[Candidate, ...]
    """As they were before the claim."""
    local: bool
    degraded: bool
    first_token_s: float
    """Predicted time from the beginning of the search to the first token."""

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(one.worker for one in self.candidates)


class Search:
    """Runs once. Not thread-safe; one event loop."""

    def __init__(self, desk: Desk, wish: Wish) -> None:
        self._desk = desk
        self._wish = wish
        self._ticket_id = TicketId(new_id("ticket"))
        self._begin = desk.clock()
        self._hopeless_since: float | None = None
        self._start_s: float | None = None
        """Predicted at its entry into the queue, where it had to wait there."""
        self._misses = 0
        self._held: tuple[Held, ...] = ()
        self._found: Found | None = None

    async def run(self) -> Found:
        """Workers with room claimed on each.

        Raises Exhausted when too many wait, no worker is large enough or the target can't be
        held, and Unavailable when no worker appears in time.
        """
        self._desk.turns.add(self._ticket_id, self._wish.order, self._wish.terms)
        try:
            while self._found is None:
                await self._step()
        except BaseException:
            await settled(self._give_up())
            raise
        self._desk.turns.remove(self._ticket_id)
        return self._found

    async def _step(self) -> None:
        if self._desk.clock() - self._begin > self._wish.lost_s:
            raise self._lost()
        options = self._options()
        if not options.plans:
            await self._wait_for_fleet()
            return
        self._hopeless_since = None
        if not self._desk.store.available:
            await self._place_directly(options)
            return
        with contextlib.suppress(Unavailable):  # the next step goes directly
            await self._wait_and_claim(options.plans[0])

    def _lost(self) -> Exhausted:
        """What waits now is served before one that comes again."""
        snapshot, options = self._desk.view.snapshot, self._options()
        after_s = RETRY_AFTER_S
        if snapshot is not None and options.plans:
            outlook = self._desk.outlook(options.plans[0])
            start_s = outlook.start_s(snapshot.queued_s, snapshot.waiting)
            after_s = max(MIN_RETRY_S, self._desk.means.pace * start_s)
        return Exhausted(
            "ttft_target: the first token can't come in time any more",
            reason="TARGET_MISSED",
            retry_after=after_s,
        )

    async def _wait_and_claim(self, plan: Plan) -> None:
        """Returns early when there may be another plan by now."""
        turns = self._desk.turns
        await self._join(plan)
        if not await turns.turn(self._ticket_id, RECHECK_S + RECHECK_WAITING_S * len(turns)):
            return
        if await self._claim():
            return
        await self._desk.view.refresh()
        if not await self._claim():
            await asyncio.sleep(min(RECHECK_S, HOLD_S * 2.0**self._misses))
            self._misses += 1

    async def _join(self, plan: Plan) -> None:
        admission = self._wish.admission if self._desk.view.settled else None
        outlook = self._desk.outlook(plan)
        own_s = prompt_time_s(plan[0].task, plan[0].best, self._wish.demand)
        allowance = admission.allowance(outlook, own_s) if admission else None
        answer = await self._desk.turns.join(self._ticket_id, _room(plan), allowance)
        if answer is None:
            return
        if answer.place is Place.REFUSED and admission:
            raise admission.refusal(
                outlook, own_s, answer.ahead_s, answer.ahead, self._desk.promises
            )
        if answer.place is Place.WAITING and self._start_s is None:
            waited_s = self._desk.clock() - self._begin
            self._start_s = waited_s + outlook.start_s(answer.ahead_s, answer.ahead)

    async def _claim(self) -> bool:
        options = self._options()
        return bool(options.plans) and await settled(self._claim_one_of(options))

    async def _claim_one_of(self, options: Options) -> bool:
        picked = await self._desk.store.claim(
            self._wish.demand.claim, options.plans, self._desk.claims.lease_s, self._ticket_id
        )
        if picked is None:
            return False
        self._take(options, picked, recorded=True)
        return True

    async def _place_directly(self, options: Options) -> None:
        """Without Redis: in the order of this router's tickets, by what it knows of the room."""
        if not self._desk.turns.is_first(self._ticket_id):
            await self._desk.turns.news(self._ticket_id, RECHECK_S)
            return
        for plan in options.plans:
            if picked := pick_now(plan):
                self._take(options, picked, recorded=False)
                return
        await asyncio.sleep(DIRECT_S)

    def _take(self, options: Options, picked: tuple[Candidate, ...], *, recorded: bool) -> None:
        demand = self._wish.demand
        tasks = tuple(choice.task for choice in options.plans[0])
        self._held = tuple(
            Held(one.worker, demand.claim, demand.cost(task), recorded, one.prompt_s)
            for task, one in zip(tasks, picked, strict=True)
        )
        for held in self._held:
            self._desk.claims.add(held)
        start_s = self._start_s
        if start_s is None:
            start_s = self._desk.clock() - self._begin + picked[0].worker.prompt_start_s
        first_token_s = start_s + prompt_time_s(tasks[0], picked[0], demand)
        self._found = Found(tasks, picked, options.local, options.degraded, first_token_s)

    async def _give_up(self) -> None:
        queued = self._desk.turns.remove(self._ticket_id)
        claim = self._wish.demand.claim
        for held in self._held:
            await self._desk.claims.release(claim.request_id, held.worker.worker_id, claim.attempt)
        if queued:
            with contextlib.suppress(BatonError):  # a turn that nobody takes is given back
                await self._desk.store.leave([self._ticket_id])

    def _options(self) -> Options:
        """What would work on an idle fleet; whether there is room now shows later."""
        return self._options_of(self._usable())

    def _options_of(self, usable: Usable) -> Options:
        wish = self._wish
        demand = wish.demand
        if self._desk.clock() - self._begin > wish.strict_s:
            demand = replace(demand, itl_target_s=None)
        return self._desk.planner.options(demand, wish.kind, usable, wish.fingerprint, wish.near)

    def _usable(self) -> Usable:
        usable, exclude = self._desk.view.usable, self._wish.exclude
        if not exclude or self._desk.clock() - self._begin >= EXCLUDE_S:
            return usable
        return lambda one: usable(one) and (one.worker_id, one.incarnation) not in exclude

    async def _wait_for_fleet(self) -> None:
        """Out of the queue, where the request would only hold up others."""
        self._refuse_if_too_large()
        now = self._desk.clock()
        if self._hopeless_since is None:
            self._hopeless_since = now
        if now - self._hopeless_since >= self._desk.patience_s:
            raise Unavailable(
                "no worker is there that can take it", reason="NO_WORKER", retry_after=RETRY_AFTER_S
            )
        with contextlib.suppress(Unavailable):
            await self._desk.turns.leave(self._ticket_id)
        await self._desk.view.change(RECHECK_S)

    def _refuse_if_too_large(self) -> None:
        view = self._desk.view
        someone = view.roster.has(Role.DECODE) or view.roster.has(Role.PREFILL)
        if view.settled and someone and not self._options_of(lambda _: True).plans:
            demand = self._wish.demand
            raise Exhausted(
                f"no worker is large enough for {demand.life_tokens} tokens",
                reason="NO_WORKER_FITS",
            )


def _room(plan: Plan) -> Room:
    needs = {choice.role: Need(choice.cost.kv_tokens, choice.best.prompt_s) for choice in plan}
    return Room(needs.get(Role.PREFILL), needs.get(Role.DECODE))
