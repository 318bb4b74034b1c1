"""Places requests on workers, and keeps what they hold there.

While Redis is away the router goes to the workers that it knows, counting what it gave them;
workers refuse what they can't take. Knows no prompts and makes no calls to workers.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from baton.errors import Exhausted
from baton.naming import RequestId, WorkerId
from baton.policy.fleet import Demand, Worker
from baton.policy.placement import HANDOFF_S, predicted_itl_s
from baton.policy.score import Order, Urgency, order
from services.common.fleet.store import FleetStore, RouterId
from services.router.admission import Admission, Promises, idle_s
from services.router.claims import Claims
from services.router.fleet import Clock, FleetView
from services.router.means import Means
from services.router.planning import Disaggregation, Kind, Options, Planner
from services.router.request import ClassTargets
from services.router.retry_budget import RetryBudget
from services.router.search import Desk, Excluded, Found, Search, Wish
from services.router.targets import Targets
from services.router.turns import RETRY_AFTER_S, Terms, Turns

STRICT_S = 0.5
"""How long a sequence that goes on insists on its inter-token latency: waiting breaks it too."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes, and what it may expect there."""

    prefill: Worker | None
    """None: its prompt goes to the decode worker."""
    decode: Worker
    """Goes on; a prefill worker where no decode worker lives."""
    ttft_target_s: float
    itl_target_s: float | None
    predicted_ttft_s: float
    """From the request's arrival."""
    predicted_itl_s: float
    local: bool
    """The decode worker computes the prompt since that is cheaper."""
    degraded: bool
    """One worker does both since a role is gone."""
    modelled_ttft_s: float = 0.0
    """The prediction by workers' costs alone, without what they don't account for."""


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """How this router queues and places its requests."""

    disaggregation: Disaggregation = "auto"
    max_waiting: int = 1024
    """Requests that may wait for a turn, over all routers."""
    targets: ClassTargets = field(default_factory=ClassTargets)
    ttft_slack_s: float = 0.0
    """By how much a time to first token may be predicted to miss its target."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Tenants' parts of the fleet, in relation to each other; 1 where none is given."""
    retry_ratio: float = 0.2
    """Retries before the first token for each request, in the long run, over all routers."""
    retry_reserve: float = 100.0
    """Retries that can be saved; they are there from the start."""
    patience_s: float = 10.0
    """How long a request waits for a worker to appear."""
    lease_s: float = 10.0
    """How long a claim outlives its router."""


class Dispatcher:
    """Places the requests of one router. Not thread-safe; one event loop."""

    def __init__(
        self,
        store: FleetStore,
        view: FleetView,
        router_id: RouterId,
        config: DispatchConfig | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._config = config or DispatchConfig()
        self._view = view
        self._means = Means(HANDOFF_S)
        self._retries = RetryBudget(store, self._config.retry_ratio, self._config.retry_reserve)
        self._turns = Turns(store, router_id, clock)
        self._claims = Claims(store, view, self._config.lease_s)
        self._planner = Planner(view, self._means, self._config.disaggregation)
        self._desk = Desk(
            store=store,
            view=view,
            planner=self._planner,
            means=self._means,
            turns=self._turns,
            claims=self._claims,
            promises=Promises(clock),
            clock=clock,
            patience_s=self._config.patience_s,
        )

    async def start(self) -> None:
        """Listens for turns and renews claims in the background."""
        await self._turns.start()
        await self._claims.start()

    async def close(self) -> None:
        """Stops both, and gives back what is held still. Close the view and the store after."""
        await self._turns.close()
        await self._claims.close()

    @property
    def waiting(self) -> int:
        """Requests of this router that wait for a worker."""
        return len(self._turns)

    @property
    def holding(self) -> int:
        """Claims of this router's requests, whether their workers took them yet or not."""
        return len(self._claims)

    def check_integrity(self) -> None:
        """Raises InternalError when the books do not agree."""
        self._turns.check_integrity()
        self._claims.check_integrity()

    async def turn(
        self,
        demand: Demand,
        urgency: Urgency | None = None,
        *,
        waited_s: float = 0.0,
        exclude: Excluded = frozenset(),
        whole: bool = False,
    ) -> Placement:
        """Waits for the request's turn, and claims a prefill worker together with room on a
        decode worker of the same KV layout, or one worker alone for both.

        `whole`: one that must not go through a prefill worker, since its stream goes on. Excluded
        workers are not asked for a second, unless they restarted.

        Raises Exhausted when too many wait, no worker is large enough, or, at its first attempt,
        the target can't be held; Unavailable when no worker appears for `patience_s`. It may be
        cancelled at any time: nothing stays queued or claimed.
        """
        if len(self._turns) >= self._config.max_waiting:
            raise Exhausted(
                "too many requests wait", reason="QUEUE_FULL", retry_after=RETRY_AFTER_S
            )
        urgency = urgency or Urgency()
        kind = Kind.WHOLE if whole else Kind.NEW
        options = self._planner.options(demand, kind, self._view.usable)
        alone_s = idle_s(options.plans)
        targets = Targets.of(urgency, self._config.targets, alone_s)
        admission, lost_s = None, math.inf
        if demand.attempt == 0 and not whole:
            admission = self._admission(urgency, targets, waited_s, alone_s)
            lost_s = math.inf if urgency.ttft_target_s is None else admission.left_s
        wish = Wish(
            demand=replace(demand, itl_target_s=targets.itl_s),
            kind=kind,
            order=self._order(demand, urgency, targets, options, waited_s, alone_s),
            terms=Terms(self._config.max_waiting, self._earn(demand)),
            exclude=exclude,
            admission=admission,
            lost_s=lost_s,
            strict_s=targets.ttft_s - waited_s,
        )
        found = await Search(self._desk, wish).run()
        predicted_s = waited_s + self._means.pace * found.first_token_s
        return _placement(found, wish.demand, targets, predicted_s)

    async def claim_decode(
        self,
        demand: Demand,
        *,
        exclude: Excluded = frozenset(),
        fingerprint: str | None = None,
        near: WorkerId | None = None,
        priority: int = 0,
    ) -> Worker:
        """Claims another decode worker alone (a prefill worker, where no decode worker lives):
        as `turn`, but ahead of what has not begun, and without refusals for its target.

        `fingerprint` is the KV layout of the handoff. A worker of another layout comes only
        where no live one has it; it can't use the handoff and has to be sent the tokens.
        `near` goes before other workers if it has room now: its cache has the prompt.
        """
        wish = Wish(
            demand=demand,
            kind=Kind.GO_ON,
            order=order(ttft_target_s=0.0, priority=priority, started=True),
            terms=Terms(),
            exclude=exclude,
            strict_s=STRICT_S,
            fingerprint=fingerprint,
            near=near,
        )
        (worker,) = (await Search(self._desk, wish).run()).workers
        return worker

    async def release(self, request_id: RequestId, worker_id: WorkerId | None = None) -> None:
        """Gives back what the request holds (on `worker_id`). Idempotent; raises nothing but its
        caller's cancel, and does its work all the same then."""
        await self._claims.release(request_id, worker_id)

    def held(self, request_id: RequestId) -> frozenset[WorkerId]:
        """Workers on which the request holds room."""
        return self._claims.held(request_id)

    async def spend_retry(self) -> bool:
        """Takes a retry before the first token from the fleet's budget, if there is one; from
        this router's own while Redis is away."""
        return await self._retries.spend()

    def observe_handoff(self, gap_s: float, step_s: float) -> None:
        """Counts a handoff: the time from the first token to the second, and that of a step at
        its decode worker."""
        self._means.observe_handoff(gap_s, step_s)

    def observe_first_token(self, placement: Placement, measured_s: float) -> None:
        """Counts the time to first token of a request that was placed once."""
        self._means.observe_first_token(placement.modelled_ttft_s, measured_s)

    def observe_output(self, tokens: int) -> None:
        """Counts an output that ended."""
        self._means.observe_output(tokens)

    def _admission(
        self, urgency: Urgency, targets: Targets, waited_s: float, alone_s: float
    ) -> Admission:
        admission = Admission(targets.ttft_s, self._config.ttft_slack_s, waited_s, self._means.pace)
        if urgency.ttft_target_s is not None and self._view.settled:
            admission.check_reach(alone_s)
        return admission

    def _order(
        self,
        demand: Demand,
        urgency: Urgency,
        targets: Targets,
        options: Options,
        waited_s: float,
        alone_s: float,
    ) -> Order:
        """Lost is what gets a worker so late that its prompt, behind those that the worker wants
        to have ahead, is done after the target and the slack."""
        snapshot = self._view.snapshot
        workers, ahead_s = 1, 0.0
        if options.plans:
            first = options.plans[0]
            workers = self._desk.outlook(first).prompt_workers
            ahead_s = first[0].best.worker.prompt_lookahead_s
        return targets.order(
            urgency,
            waited_s=waited_s,
            started=demand.emitted_tokens > 0,
            busy=snapshot.clocks if snapshot else {},
            weights=self._config.tenant_weights,
            workers=workers,
            grace_s=self._config.ttft_slack_s - self._means.pace * (alone_s + ahead_s),
        )

    def _earn(self, demand: Demand) -> float:
        if demand.attempt > 0:
            return 0.0
        self._retries.earn()
        return self._retries.ratio


def _placement(found: Found, demand: Demand, targets: Targets, predicted_s: float) -> Placement:
    *before, decode = found.workers
    return Placement(
        prefill=before[0] if before else None,
        decode=decode,
        ttft_target_s=targets.ttft_s,
        itl_target_s=targets.itl_s,
        predicted_ttft_s=predicted_s,
        modelled_ttft_s=found.first_token_s,
        predicted_itl_s=predicted_itl_s(decode, demand),
        local=found.local,
        degraded=found.degraded,
    )
