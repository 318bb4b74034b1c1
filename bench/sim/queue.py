"""The fleet's queue and claims as Redis keeps them for all routers, by the rules of its scripts.

Order is by score; the two clocks move it. Turns are given from the head while the fleet has
room for it: nobody overtakes. Each worker's room is what it told last, less what is claimed.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from baton.naming import WorkerId
from baton.policy.admission import Allowance
from baton.policy.fleet import Claim, Load, Role, Usage, Worker
from baton.policy.placement import Candidate, Plan
from baton.policy.score import DEMOTION_S, Order
from bench.sim.life import Life

BUCKET_S = 0.5
BATCH = 64


@dataclass(frozen=True, slots=True)
class Need:
    """What a ticket needs of one role."""

    kv_tokens: int
    prompt_s: float


@dataclass(slots=True, eq=False)
class Ticket:
    """One request's place in the queue."""

    life: Life
    needs: dict[Role, Need]
    score: float = 0.0
    late_at: float | None = None
    waiting: bool = False
    turn: bool = False
    queued: bool = False
    """It was in the queue before."""

    @property
    def work_s(self) -> float:
        return sum(need.prompt_s for need in self.needs.values())


@dataclass(slots=True)
class _State:
    worker: Worker
    claims: dict[Claim, tuple[Usage, float]] = field(default_factory=dict)
    slots: int = 0
    """0: it takes nothing, and nothing of it is in the sums."""
    room_s: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class _Rooms:
    """Of one role: sums over its workers with a free sequence, and over the tickets at their turn
    that need it."""

    slots: int = 0
    room_s: float = 0.0
    tokens: list[tuple[int, WorkerId]] = field(default_factory=list)
    """Free tokens of those workers."""
    wants: list[tuple[int, WorkerId]] = field(default_factory=list)
    """The same of those of them that want prompts."""
    turns: int = 0
    given_s: float = 0.0

    def count_worker(self, state: _State, sign: int) -> None:
        """Takes a worker in, or out again before its state changes."""
        if not state.slots:
            return
        self.slots += sign * state.slots
        self.room_s += sign * state.room_s
        entry = (state.tokens, state.worker.worker_id)
        for entries in (self.tokens, self.wants) if state.room_s > 0 else (self.tokens,):
            if sign > 0:
                insort(entries, entry)
            else:
                del entries[bisect_left(entries, entry)]

    def count_turn(self, need: Need, sign: int) -> None:
        """Takes a turn in, or out again."""
        self.turns += sign
        self.given_s = self.given_s + sign * need.prompt_s if self.turns else 0.0

    def fits(self, need: Need) -> bool:
        """Whether there is room for one turn more."""
        best = self.wants if need.prompt_s > 0 else self.tokens
        if not best or best[-1][0] < need.kv_tokens or self.slots <= self.turns:
            return False
        return need.prompt_s <= 0 or self.room_s > self.given_s


class FleetQueue:
    """Tickets and workers' room. `give` is called with each ticket whose turn comes."""

    def __init__(self, clock: Callable[[], float], give: Callable[[Ticket], None]) -> None:
        self.clocks: dict[str, float] = {}
        self._clock = clock
        self._give = give
        self._heap: list[tuple[float, int, Ticket]] = []
        self._serial = 0
        self._scores: list[float] = []
        self._buckets: dict[int, tuple[float, int]] = {}
        self._states: dict[WorkerId, _State] = {}
        self._rooms = {role: _Rooms() for role in Role}

    @property
    def waiting(self) -> int:
        return len(self._scores)

    @property
    def queued_s(self) -> float:
        """Prompt work of those that wait."""
        return sum(work for work, _ in self._buckets.values())

    def first(self, count: int) -> list[Ticket]:
        """Those that come next."""
        return [ticket for _, _, ticket in heapq.nsmallest(count, self._heap)]

    def change(self, ticket: Ticket, needs: dict[Role, Need]) -> None:
        """What a ticket that waits needs now; it keeps its place."""
        self._count(ticket, -1)
        ticket.needs = needs
        self._count(ticket, 1)

    def workers(self) -> list[Worker]:
        """All workers with what is claimed on them: a router's snapshot."""
        return [state.worker for state in self._states.values()]

    def ahead(self) -> dict[str, float]:
        """Seconds by which each clock is ahead."""
        now = self._clock()
        return {name: at - now for name, at in self.clocks.items() if at > now}

    def enqueue(self, ticket: Ticket, order: Order, allowed: Allowance | None = None) -> bool:
        """Queues a ticket; one that is known keeps its score. False: too much is before it."""
        now = self._clock()
        if not ticket.queued:
            score = now + order.due_s
            if order.clock:
                score += max(0.0, self.clocks.get(order.clock, 0.0) - now)
            if order.floor:
                score = min(score, max(now, self.clocks.get(order.floor, 0.0)))
            if allowed is not None and not allowed.admits(*self._before(score)):
                return False
            for name, rate in ((order.clock, order.clock_rate), (order.floor, order.floor_rate)):
                if name:
                    at = max(self.clocks.get(name, 0.0), now)
                    self.clocks[name] = at + ticket.work_s * rate
            ticket.score, ticket.queued = score, True
            ticket.late_at = None if order.late_s is None else now + order.late_s
        self._end_turn(ticket)
        self._push(ticket)
        self.grant()
        return True

    def heartbeat(
        self, worker: Worker, running: Usage, load: Load, taken: Sequence[Claim] = ()
    ) -> None:
        """What a worker tells; the claims that it took count no more."""
        state = self._states.setdefault(worker.worker_id, _State(worker))
        if worker.draining and not state.worker.draining:
            state.worker = replace(state.worker, draining=True)
        for claim in taken:
            state.claims.pop(claim, None)
        self._settle(state, running, load)
        self.grant()

    def forget(self, worker_id: WorkerId) -> None:
        """A worker has left; nothing of it counts any more."""
        state = self._states.pop(worker_id, None)
        if state is not None:
            self._rooms[state.worker.role].count_worker(state, -1)

    def claim(
        self, claim: Claim, plans: Sequence[Plan], ticket: Ticket | None
    ) -> tuple[Candidate, ...] | None:
        """Room for the first plan for which there is room, all or nothing."""
        if ticket is not None and not ticket.turn:
            return None
        for plan in plans:
            picked: list[Candidate] = []
            for choice in plan:
                one = next(
                    (one for one in choice.candidates if self._has_room(one, choice.cost)), None
                )
                if one is None:
                    break
                picked.append(one)
            else:
                for choice, one in zip(plan, picked, strict=True):
                    state = self._states[one.worker.worker_id]
                    state.claims[claim] = (choice.cost, one.prompt_s)
                    self._settle(state, state.worker.running, state.worker.load)
                if ticket is not None:
                    self._end_turn(ticket)
                return tuple(picked)
        return None

    def release(self, claim: Claim, worker_id: WorkerId) -> None:
        """Ends a claim that its worker never took."""
        state = self._states.get(worker_id)
        if state is not None and state.claims.pop(claim, None) is not None:
            self._settle(state, state.worker.running, state.worker.load)
            self.grant()

    def grant(self) -> None:
        """Gives turns from the head of the queue while there is room for it."""
        now = self._clock()
        for _ in range(BATCH):
            ticket = self._head()
            if ticket is None:
                return
            if ticket.late_at is not None and ticket.late_at < now:
                self._pop(ticket)
                ticket.score, ticket.late_at = now + DEMOTION_S, None
                self._push(ticket)
                continue
            if not all(self._rooms[role].fits(need) for role, need in ticket.needs.items()):
                return
            self._pop(ticket)
            ticket.turn = True
            for role, need in ticket.needs.items():
                self._rooms[role].count_turn(need, 1)
            self._give(ticket)

    def _end_turn(self, ticket: Ticket) -> None:
        if ticket.turn:
            ticket.turn = False
            for role, need in ticket.needs.items():
                self._rooms[role].count_turn(need, -1)

    def _has_room(self, one: Candidate, cost: Usage) -> bool:
        state = self._states.get(one.worker.worker_id)
        if state is None:
            return False
        worker = state.worker
        return (
            not worker.draining
            and cost.fits_in(worker.free)
            and worker.sequences < one.limit
            and (one.prompt_s == 0 or worker.wants_prompts(one.saved_s))
        )

    def _settle(self, state: _State, running: Usage, load: Load) -> None:
        rooms = self._rooms[state.worker.role]
        rooms.count_worker(state, -1)
        pending, prompt_s = Usage(0, 0), 0.0
        for usage, seconds in state.claims.values():
            pending, prompt_s = pending + usage, prompt_s + seconds
        state.worker = worker = replace(
            state.worker, running=running, load=load, pending=pending, pending_prompt_s=prompt_s
        )
        free = worker.free
        is_open = free.sequences > 0 and free.kv_tokens > 0 and not worker.draining
        state.slots, state.tokens = free.sequences if is_open else 0, free.kv_tokens
        state.room_s = max(0.0, worker.prompt_lookahead_s - worker.prompt_start_s)
        rooms.count_worker(state, 1)

    def _before(self, score: float) -> tuple[float, int]:
        """Prompt work of the tickets up to this score's bucket, and how many are due no later."""
        mine = int(score // BUCKET_S)
        work_s = sum(work for slot, (work, _) in self._buckets.items() if slot <= mine)
        return work_s, bisect_right(self._scores, score)

    def _push(self, ticket: Ticket) -> None:
        if ticket.waiting:
            return
        self._serial += 1
        ticket.waiting = True
        heapq.heappush(self._heap, (ticket.score, self._serial, ticket))
        self._count(ticket, 1)

    def _pop(self, ticket: Ticket) -> None:
        heapq.heappop(self._heap)
        ticket.waiting = False
        self._count(ticket, -1)

    def _head(self) -> Ticket | None:
        return self._heap[0][2] if self._heap else None

    def _count(self, ticket: Ticket, sign: int) -> None:
        if sign > 0:
            insort(self._scores, ticket.score)
        else:
            del self._scores[bisect_left(self._scores, ticket.score)]
        slot = int(ticket.score // BUCKET_S)
        work, count = self._buckets.get(slot, (0.0, 0))
        self._buckets[slot] = (work + sign * ticket.work_s, count + sign)
        if count + sign == 0:
            del self._buckets[slot]
