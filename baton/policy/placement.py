"""Which workers may take a request, and which one best.

Pure functions over a snapshot of the fleet; knows no Redis and no clock. What is chosen here
is a wish: a claim may find the room gone.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from baton.naming import RequestId
from baton.policy.fleet import Demand, ModelLimits, Role, Usage, Worker

MAX_CANDIDATES = 8
"""Workers that one claim tries; as many are enough to miss a few that just filled up."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Room on one worker of a role: the first of `workers` that has it."""

    role: Role
    cost: Usage
    workers: tuple[Worker, ...]
    """Best first, never empty."""


Plan = tuple[Choice, ...]
"""What a request needs all at once; all workers in it share one KV layout."""


def could_hold(worker: Worker, demand: Demand) -> bool:
    """Whether the worker, were it idle, could take the request."""
    return (
        not worker.draining
        and demand.prompt_tokens + demand.max_tokens <= worker.model.context_tokens
        and demand.cost(worker.role).fits_in(worker.capacity)
    )


def load(worker: Worker) -> float:
    """The taken share of what is scarcest on the worker: 0 idle, 1 full."""
    taken = worker.capacity - worker.free
    sequences = taken.sequences / max(1, worker.capacity.sequences)
    return max(sequences, taken.kv_tokens / max(1, worker.capacity.kv_tokens))


def rank(demand: Demand, role: Role, workers: Iterable[Worker]) -> tuple[Worker, ...]:
    """Workers of `role` that could hold the request: those with room now first, then the least
    loaded; ties fall differently for each request, but always the same for one."""
    cost = demand.cost(role)
    able = [worker for worker in workers if worker.role is role and could_hold(worker, demand)]
    return tuple(
        sorted(
            able,
            key=lambda worker: (
                not cost.fits_in(worker.free),
                load(worker),
                _rendezvous(demand.request_id, worker),
            ),
        )
    )


def plans(demand: Demand, roles: Sequence[Role], workers: Iterable[Worker]) -> tuple[Plan, ...]:
    """Ways to give the request one worker of each of `roles`, best first.

    There is one plan for each KV layout that has all the roles; empty when none has.
    """
    found = [
        plan
        for members in _layouts(workers).values()
        if (plan := _plan(demand, roles, members)) is not None
    ]
    return tuple(sorted(found, key=_plan_key))


def pick_now(plan: Plan) -> tuple[Worker, ...] | None:
    """The best worker with room of each choice; None: one choice has none."""
    picked = []
    for choice in plan:
        worker = next((one for one in choice.workers if choice.cost.fits_in(one.free)), None)
        if worker is None:
            return None
        picked.append(worker)
    return tuple(picked)


def common_limits(workers: Iterable[Worker]) -> ModelLimits | None:
    """What the layout with the most workers serves, with the longest context that some
    placement in it can hold. None: there is no worker."""
    layouts = _layouts(workers)
    if not layouts:
        return None
    _, members = max(layouts.items(), key=lambda item: (len(item[1]), item[0]))
    longest = [
        max(worker.model.context_tokens for worker in members if worker.role is role)
        for role in {worker.role for worker in members}
    ]
    return replace(members[0].model, context_tokens=min(longest))


def _layouts(workers: Iterable[Worker]) -> dict[str, list[Worker]]:
    layouts: dict[str, list[Worker]] = {}
    for worker in workers:
        layouts.setdefault(worker.layout_fingerprint, []).append(worker)
    return layouts


def _plan(demand: Demand, roles: Sequence[Role], members: Sequence[Worker]) -> Plan | None:
    choices = tuple(
        Choice(role, demand.cost(role), rank(demand, role, members)[:MAX_CANDIDATES])
        for role in roles
    )
    return choices if all(choice.workers for choice in choices) else None


def _plan_key(plan: Plan) -> tuple[bool, float, str]:
    full = any(not choice.cost.fits_in(choice.workers[0].free) for choice in plan)
    busiest = max(load(choice.workers[0]) for choice in plan)
    return full, busiest, plan[0].workers[0].layout_fingerprint


def _rendezvous(request_id: RequestId, worker: Worker) -> bytes:
    return hashlib.blake2b(f"{request_id}\0{worker.worker_id}".encode(), digest_size=8).digest()
