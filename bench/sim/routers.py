"""Routers with Baton's policy: the functions of `baton.policy` over what a router sees.

Each router has a roster from its last snapshot and notes its own claims in it. Workers tell
what they have when it changes, at most every 10 ms, and every quarter of a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from baton.naming import RequestId
from baton.policy.admission import allowance
from baton.policy.fleet import Claim, Demand, Load, Role, Task, Usage, Worker
from baton.policy.placement import (
    AT_DECODE,
    GO_ON,
    SPLIT,
    Candidate,
    Plan,
    has_room,
    plans,
    prefers_local,
    prompt_time_s,
)
from baton.policy.roster import Roster
from baton.policy.score import fair_share, order
from bench.sim.fleet import CALL_S, Fleet
from bench.sim.life import Life
from bench.sim.queue import FleetQueue, Need, Ticket
from bench.sim.records import claim_of, number_of, record, worker_id
from bench.sim.worker import SimWorker

BEAT_S = 0.25
HOLD_S = 0.05
POLL_S = 0.1
HEAD = 16
REFRESH_S = 0.05
"""A snapshot that is not older is new enough."""
WEIGHT = 0.05
"""Of the newest value in moving means."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """How the routers decide."""

    routers: int = 2
    poll_s: float | None = None
    """Age at which a router asks for a new snapshot. None: as the router, by the fleet's size."""
    slack_s: float = 0.0
    """By how much the prediction may miss the target before a request is refused."""
    refuse: bool = True
    disaggregation: str = "auto"
    """As the router's setting: auto, always, or never."""
    tell_s: float = 0.01
    """A worker tells what it has at most so often."""
    weights: Mapping[str, float] = field(default_factory=dict)


class Routers:
    """All routers of a fleet, the queue that they share, and the heartbeats."""

    def __init__(self, fleet: Fleet, config: RouterConfig) -> None:
        self.fleet = fleet
        self.config = config
        self.events = fleet.events
        self.queue = FleetQueue(lambda: self.events.now, self._give)
        self.stay_s = 1.0
        """Moving mean of the time in a decode batch."""
        self.missed_claims = 0
        self._targets: dict[int, SimWorker] = {}
        """Decode workers that have room for requests whose prompts are computed elsewhere."""
        self._taken: list[list[Claim]] = []
        self._told_s: list[float] = []
        self._telling: list[bool] = []
        self._records: list[Worker] = []
        for worker in fleet.workers:
            self.join(worker)
        self._routers = [Router(self, f"router{number}") for number in range(config.routers)]
        self._poll()

    def join(self, worker: SimWorker) -> None:
        """Takes in a worker, whose number is the next."""
        self._taken.append([])
        self._told_s.append(-1.0)
        self._telling.append(False)
        self._records.append(record(self.fleet, worker))
        self._tell(worker)
        self._beat(worker)

    def drain(self, worker: SimWorker) -> None:
        """A worker takes nothing new from its next heartbeat on."""
        self._records[worker.number] = replace(self._records[worker.number], draining=True)
        self.changed(worker)

    def leave(self, worker: SimWorker) -> None:
        """Forgets a worker that has left the fleet."""
        self.queue.forget(worker_id(worker.number))

    def arrive(self, life: Life) -> None:
        self._router(life).arrive(life)

    def go_on(self, life: Life) -> None:
        """Where it has room already, it goes there; else it waits for a decode worker."""
        worker = self._targets.pop(life.number, None)
        if worker is not None and worker.draining:
            self.queue.release(claim_of(life), worker_id(worker.number))
            worker = None
        if worker is not None:
            self.fleet.hand_over(life, worker)
        else:
            life.attempts += 1
            self._router(life).go_on(life)

    def admitted(self, worker: SimWorker, life: Life) -> None:
        self._taken[worker.number].append(claim_of(life))
        self.changed(worker)

    def finished(self, life: Life) -> None:
        worker = self._targets.pop(life.number, None)
        if worker is not None:
            self.queue.release(claim_of(life), worker_id(worker.number))
        if life.decode_since_s:
            self.stay_s += WEIGHT * (self.events.now - life.decode_since_s - self.stay_s)

    def changed(self, worker: SimWorker) -> None:
        """Plans a heartbeat, unless one is coming."""
        number = worker.number
        if not self._telling[number] and not worker.ended:
            self._telling[number] = True
            at_s = max(self.events.now + CALL_S, self._told_s[number] + self.config.tell_s)
            self.events.at(at_s, lambda: self._tell(worker))

    def place(self, life: Life, plan: Plan, picked: Sequence[Candidate]) -> None:
        """Sends a request to the workers that it has room on."""
        workers = [self.fleet.workers[number_of(one.worker.worker_id)] for one in picked]
        first = plan[0].task
        if first is Task.PREFILL:
            self._targets[life.number] = workers[1]
        if first is Task.DECODE:
            self.fleet.hand_over(life, workers[0])
        else:
            self.fleet.send(life, workers[0], first)

    def demand(self, life: Life) -> Demand:
        """What a router asks for a request now."""
        on_time = self.events.now - life.arrived_s <= life.ttft_target_s
        cached = {
            worker_id(number): min(tokens, life.known_tokens - 1)
            for host, tokens in self.fleet.index.cached(life.blocks).items()
            for number in self.fleet.on_host[host]
        }
        return Demand(
            request_id=RequestId(str(life.number)),
            attempt=life.attempts,
            prompt_tokens=life.prompt_tokens,
            max_tokens=life.max_tokens,
            emitted_tokens=life.emitted,
            itl_target_s=life.itl_target_s if on_time else None,
            cached=cached,
        )

    def _router(self, life: Life) -> "Router":
        return self._routers[life.number % len(self._routers)]

    def _give(self, ticket: Ticket) -> None:
        self.events.after(CALL_S, lambda: self._router(ticket.life).turn(ticket))

    def _tell(self, worker: SimWorker) -> None:
        number = worker.number
        self._telling[number] = False
        if worker.ended:
            return
        self._told_s[number] = self.events.now
        taken, self._taken[number] = self._taken[number], []
        load = Load(
            prompt_backlog_s=worker.backlog_s(),
            context_tokens=worker.context_tokens,
            itl_target_s=min(worker.itl_targets, default=None),
            sequence_limit=worker.sequence_limit(),
        )
        running = Usage(worker.running, worker.kv_tokens)
        self.queue.heartbeat(self._records[number], running, load, taken)

    def _beat(self, worker: SimWorker) -> None:
        if worker.ended:
            return
        if worker.running or not self.events.now:
            self.changed(worker)
        self.events.after(BEAT_S, lambda: self._beat(worker))

    def _poll(self) -> None:
        """Waiting requests look again which way suits them, those at the head at least."""
        for ticket in self.queue.first(HEAD):
            self._router(ticket.life).look_again(ticket)
        self.queue.grant()
        self.events.after(POLL_S, self._poll)


class Router:
    """One of them."""

    def __init__(self, shared: Routers, name: str) -> None:
        self._shared = shared
        self._roster = Roster((), name)
        self._fresh_s = 0.0
        self._poll()

    def arrive(self, life: Life) -> None:
        """Queues a new request, or refuses it."""
        shared = self._shared
        demand = shared.demand(life)
        found = self._plans(demand)
        if not found:
            life.refused = True
            return
        first = found[0][0]
        own_s = prompt_time_s(first.task, first.best, demand)
        outlook = self._roster.outlook(first.role, Role.DECODE, shared.stay_s)
        tenant = life.tenant
        standing = order(
            ttft_target_s=life.ttft_target_s,
            priority=life.priority,
            batch=life.batch,
            tenant=tenant,
            share=fair_share(tenant, shared.queue.ahead(), shared.config.weights) if tenant else 1,
            workers=outlook.prompt_workers,
            grace_s=shared.config.slack_s
            - first.best.prompt_s
            - first.best.worker.prompt_lookahead_s,
        )
        wait_s = life.ttft_target_s + shared.config.slack_s - own_s
        allowed = allowance(outlook, wait_s) if shared.config.refuse else None
        ticket = Ticket(life, _needs(found[0]))
        life.refused = not shared.queue.enqueue(ticket, standing, allowed)

    def go_on(self, life: Life) -> None:
        """Queues one that has begun, before all that have not."""
        found = plans(self._shared.demand(life), (GO_ON,), self._roster, _anyone)
        standing = order(ttft_target_s=0.0, priority=life.priority, started=True)
        self._shared.queue.enqueue(Ticket(life, _needs(found[0])), standing)

    def look_again(self, ticket: Ticket) -> None:
        """Plans for a ticket that waits."""
        demand = self._shared.demand(ticket.life)
        found = () if ticket.life.emitted else self._plans(demand)
        if found and {choice.role for choice in found[0]} != ticket.needs.keys():
            self._shared.queue.change(ticket, _needs(found[0]))

    def turn(self, ticket: Ticket) -> None:
        """Claims what the request needs; twice, the second time over a new snapshot."""
        if self._claimed(ticket):
            return
        self._shared.missed_claims += 1
        if self._shared.events.now - self._fresh_s >= REFRESH_S:
            self._refresh()
            if self._claimed(ticket):
                return
        self._shared.events.after(HOLD_S, lambda: self._give_back(ticket))

    def _give_back(self, ticket: Ticket) -> None:
        if not self._claimed(ticket):
            self._shared.queue.enqueue(ticket, order(ttft_target_s=0))

    def _claimed(self, ticket: Ticket) -> bool:
        shared, life = self._shared, ticket.life
        demand = shared.demand(life)
        ways = (GO_ON,) if life.emitted else None
        found = plans(demand, ways, self._roster, _anyone) if ways else self._plans(demand)
        picked = shared.queue.claim(demand.claim, found, ticket)
        if picked is None:
            return False
        for choice, one in zip(found[0], picked, strict=True):
            self._roster.note(one.worker.worker_id, choice.cost, one.prompt_s)
        life.local = found[0][0].task is Task.WHOLE and bool(shared.fleet.config.prefill)
        shared.place(life, found[0], picked)
        return True

    def _plans(self, demand: Demand) -> tuple[Plan, ...]:
        mode = self._shared.config.disaggregation
        split = plans(demand, (SPLIT,), self._roster, _anyone) if mode != "never" else ()
        if split and mode == "always":
            return split
        local = plans(demand, (AT_DECODE,), self._roster, _anyone)
        if not split or not local:
            return split or local
        after_s = self._handed_over_s(demand, split[0])
        return local if prefers_local(demand, split[0], local[0], after_s) else split

    def _handed_over_s(self, demand: Demand, split: Plan) -> float:
        """What the way over a prefill worker takes beyond it: the queue before, the handoff
        after."""
        config = self._shared.fleet.config
        outlook = self._roster.outlook(split[0].role, split[-1].role, 0.0)
        queued_s = self._shared.queue.queued_s / max(1, outlook.prompt_workers)
        if has_room(split[0], split[0].best):
            queued_s = 0.0
        seconds = demand.prompt_tokens * config.kv_token_bytes / config.link_bytes_s
        return queued_s + 3 * CALL_S + seconds

    def _poll(self) -> None:
        self._refresh()
        workers = len(self._shared.queue.workers())
        period_s = 0.2 if workers <= 200 else min(1.0, workers / 1000)
        period_s = self._shared.config.poll_s or period_s
        self._shared.events.after(period_s, self._poll)

    def _refresh(self) -> None:
        self._fresh_s = self._shared.events.now
        for worker in self._shared.queue.workers():
            if self._roster.get(worker.worker_id) is not worker:
                self._roster.put(worker)


def _needs(plan: Plan) -> dict[Role, Need]:
    return {choice.role: Need(choice.cost.kv_tokens, choice.best.prompt_s) for choice in plan}


def _anyone(_worker: Worker) -> bool:
    return True
