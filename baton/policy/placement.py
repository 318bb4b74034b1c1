"""Which workers may take a request, and which one best.

Pure functions over a roster of the fleet; knows no Redis and no clock. What is chosen here is a
wish: a claim may find the room gone. A decision looks at a few workers: the least taken ones,
and those that have the prompt cached.
"""

import hashlib
import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from baton.naming import RequestId, WorkerId
from baton.policy.cost import pairs
from baton.policy.fleet import Demand, ModelLimits, Role, Task, Usage, Worker
from baton.policy.roster import Roster, load

MAX_CANDIDATES = 8
"""Workers that one claim tries; as many are enough to miss a few that just filled up."""
HANDOFF_S = 0.01
"""What a handoff takes beyond a decode step, until one was measured."""
LONG_LOCAL = 2.0
"""By how much faster than a handoff a prompt of several steps must be beside a decode batch."""
OTHER_HOST = 1.1
"""By how much slower a decode worker counts that has to read the KV from another host."""

Way = tuple[tuple[Task, Role], ...]
"""Who does what for a request; the first computes the prompt, the last goes on."""
SPLIT: Way = ((Task.PREFILL, Role.PREFILL), (Task.DECODE, Role.DECODE))
AT_DECODE: Way = ((Task.WHOLE, Role.DECODE),)
AT_PREFILL: Way = ((Task.WHOLE, Role.PREFILL),)
GO_ON: Way = ((Task.DECODE, Role.DECODE),)
GO_ON_AT_PREFILL: Way = ((Task.DECODE, Role.PREFILL),)

Usable = Callable[[Worker], bool]
"""Whether a worker may be asked at all."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may do a task."""

    worker: Worker
    prompt_s: float
    """Prompt work that it would have with it; 0: none."""
    limit: int
    """Sequences that it may have with this one, so that its inter-token latency holds."""
    saved_s: float = 0.0
    """Prompt work that its cache saves. It may have so much more ahead than it wants: waiting
    there is better than computing again elsewhere."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Room on one worker for a task: the first candidate that has it."""

    task: Task
    role: Role
    cost: Usage
    candidates: tuple[Candidate, ...]
    """Best first, never empty."""

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


Plan = tuple[Choice, ...]
"""What a request needs all at once; all workers in it share one KV layout."""


def could_hold(worker: Worker, demand: Demand, task: Task) -> bool:
    """Whether the worker, were it idle, could do the task to its end."""
    return (
        not worker.draining
        and demand.life_tokens <= worker.model.context_tokens
        and demand.cost(task).fits_in(worker.capacity)
    )


def has_room(choice: Choice, candidate: Candidate) -> bool:
    """Whether the candidate can take the task now, as far as is known."""
    worker = candidate.worker
    return (
        choice.cost.fits_in(worker.free)
        and worker.sequences < candidate.limit
        and (candidate.prompt_s == 0 or worker.wants_prompts(candidate.saved_s))
    )


def plans(
    demand: Demand,
    ways: Sequence[Way],
    roster: Roster,
    usable: Usable,
    layout: str | None = None,
    near: WorkerId | None = None,
) -> tuple[Plan, ...]:
    """Plans of the first of `ways` that some KV layout has workers for, best first.

    There is one for each layout; with `layout` that one alone is looked at, unless no worker
    has it. `near` goes before other workers where it has room. Empty: there is none.
    """
    layouts = roster.layouts()
    wanted = (layout,) if layout in layouts else layouts
    for chosen in (wanted, layouts):
        for way in ways:
            found = [_plan(demand, way, one, roster, usable, near) for one in chosen]
            if plans_found := sorted(filter(None, found), key=_plan_key):
                return tuple(plans_found)
    return ()


def pick_now(plan: Plan) -> tuple[Candidate, ...] | None:
    """The best candidate with room of each choice; None: one choice has none."""
    picked = []
    for choice in plan:
        candidate = next((one for one in choice.candidates if has_room(choice, one)), None)
        if candidate is None:
            return None
        picked.append(candidate)
    return tuple(picked)


def prefers_local(demand: Demand, split: Plan, local: Plan, handoff_s: float = HANDOFF_S) -> bool:
    """Whether to compute the prompt beside a decode batch. Every step of it must hold the
    batch's latency target. A prompt of one step must have its first token no later than a
    prefill worker and a handoff would bring it on. A longer one, which takes the batch's time
    for several, is only for when no prefill worker has room, and must take half that time."""
    prefill, whole = split[0].best, local[0].best
    decode = whole.worker
    if not has_room(local[0], whole):
        return False
    local_s = decode.prompt_start_s + prompt_time_s(Task.WHOLE, whole, demand)
    handed_s = prefill.worker.prompt_start_s + prefill.prompt_s + handoff_s
    new, chunk = demand.new_tokens(decode), _chunk(decode)
    if new > chunk and has_room(split[0], split[0].best):
        return False
    if local_s > (handed_s if new <= chunk else handed_s / LONG_LOCAL):
        return False
    last = min(new, chunk)
    longest_s = decode.cost.step_s(
        prompt_tokens=last,
        prompt_pairs=pairs(last, demand.known_tokens - last),
        sequences=decode.sequences,
        context_tokens=decode.context_tokens,
    )
    targets = (decode.load.itl_target_s, demand.itl_target_s)
    return longest_s <= min(
        (one for one in targets if one is not None),
        default=2 * _beside_s(decode) if decode.sequences else math.inf,
    )


def prompt_time_s(task: Task, candidate: Candidate, demand: Demand) -> float:
    """Seconds that the candidate takes for the prompt, beside what it decodes."""
    worker = candidate.worker
    if task is not Task.WHOLE or worker.sequences == 0:
        return candidate.prompt_s
    steps = math.ceil(demand.new_tokens(worker) / _chunk(worker))
    return candidate.prompt_s + steps * (_beside_s(worker) - worker.cost.base_s)


def _chunk(worker: Worker) -> int:
    """Prompt tokens of one step beside what the worker decodes."""
    return max(1, worker.step_tokens - worker.sequences)


def _beside_s(worker: Worker) -> float:
    """A step of what the worker decodes, in seconds."""
    return worker.cost.decode_step_s(worker.sequences, worker.context_tokens)


def predicted_itl_s(worker: Worker, demand: Demand) -> float:
    """Seconds between tokens on `worker` with the request added."""
    return worker.cost.decode_step_s(
        worker.sequences + 1, worker.context_tokens + demand.known_tokens
    )


def common_limits(workers: Iterable[Worker]) -> ModelLimits | None:
    """What the layout with the most workers serves, with the longest context that some
    placement in it can hold. None: there is no worker."""
    layouts: dict[str, list[Worker]] = {}
    for worker in workers:
        layouts.setdefault(worker.layout_fingerprint, []).append(worker)
    if not layouts:
        return None
    _, members = max(layouts.items(), key=lambda item: (len(item[1]), item[0]))
    longest = [
        max(worker.model.context_tokens for worker in members if worker.role is role)
        for role in {worker.role for worker in members}
    ]
    return replace(members[0].model, context_tokens=min(longest))


def _plan(
    demand: Demand, way: Way, layout: str, roster: Roster, usable: Usable, near: WorkerId | None
) -> Plan | None:
    choices: list[Choice] = []
    host = None
    for task, role in way:
        choice = _choice(demand, task, role, layout, roster, usable, near, host)
        if choice is None:
            return None
        choices.append(choice)
        host = choice.best.worker.transfer_address
    return tuple(choices)


def _choice(
    demand: Demand,
    task: Task,
    role: Role,
    layout: str,
    roster: Roster,
    usable: Usable,
    near: WorkerId | None,
    host: str | None,
) -> Choice | None:
    def able(worker: Worker) -> bool:
        return usable(worker) and could_hold(worker, demand, task)

    least_taken = roster.first(layout, role, MAX_CANDIDATES, able)
    named = [] if near is None else [near]
    if task is not Task.DECODE:
        named += demand.cached
    known = (roster.get(worker_id) for worker_id in named)
    here = [
        worker
        for worker in known
        if worker is not None
        and (worker.layout_fingerprint, worker.role) == (layout, role)
        and able(worker)
    ]
    nearest = heapq.nsmallest(
        MAX_CANDIDATES,
        here,
        key=lambda one: (
            one.worker_id != near,
            one.prompt_start_s + demand.prompt_s(task, one),
        ),
    )
    found = {worker.worker_id: worker for worker in (*least_taken, *nearest)}
    candidates = [_candidate(worker, demand, task) for worker in found.values()]
    choice = Choice(task, role, demand.cost(task), tuple(candidates))
    ranked = sorted(candidates, key=lambda one: _rank(choice, one, demand, near, host))
    return replace(choice, candidates=tuple(ranked[:MAX_CANDIDATES])) if ranked else None


def _candidate(worker: Worker, demand: Demand, task: Task) -> Candidate:
    prompt_s = demand.prompt_s(task, worker)
    saved_s = 0.0
    if prompt_s and worker.worker_id in demand.cached:
        saved_s = replace(demand, cached={}).prompt_s(task, worker) - prompt_s
    return Candidate(worker, prompt_s, _limit(worker, demand, task), max(0.0, saved_s))


def _limit(worker: Worker, demand: Demand, task: Task) -> int:
    most = worker.capacity.sequences
    if task is Task.PREFILL or demand.itl_target_s is None:
        return most
    mean = (worker.context_tokens + demand.known_tokens) / (worker.sequences + 1)
    return worker.cost.sequences_within(demand.itl_target_s, mean, most)


def _rank(
    choice: Choice, candidate: Candidate, demand: Demand, near: WorkerId | None, host: str | None
) -> tuple[bool, bool, float, bytes]:
    worker = candidate.worker
    seconds = worker.prompt_start_s + candidate.prompt_s if candidate.prompt_s else 0.0
    if choice.task is not Task.PREFILL:
        elsewhere = host is not None and worker.transfer_address != host
        step_s = predicted_itl_s(worker, demand) * (OTHER_HOST if elsewhere else 1.0)
        seconds += step_s * (1 + max(0.0, load(worker)))
    return (
        not has_room(choice, candidate),
        worker.worker_id != near,
        seconds,
        _rendezvous(demand.request_id, worker),
    )


def _plan_key(plan: Plan) -> tuple[bool, float, str]:
    full = any(not has_room(choice, choice.best) for choice in plan)
    busiest = max(load(choice.best.worker) for choice in plan)
    return full, busiest, plan[0].best.worker.layout_fingerprint


def _rendezvous(request_id: RequestId, worker: Worker) -> bytes:
    return hashlib.blake2b(f"{request_id}\0{worker.worker_id}".encode(), digest_size=8).digest()
