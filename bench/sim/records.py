"""Simulated workers and requests as routers know them: names, claims, records."""

from baton.naming import Incarnation, RequestId, WorkerId
from baton.policy.fleet import Claim, ModelLimits, Usage, Worker
from bench.sim.fleet import Fleet
from bench.sim.life import Life
from bench.sim.worker import SimWorker


def claim_of(life: Life) -> Claim:
    """The claim of a request's present attempt."""
    return Claim(RequestId(str(life.number)), life.attempts)


def worker_id(number: int) -> WorkerId:
    """The name of a worker."""
    return WorkerId(f"w{number}")


def number_of(name: WorkerId) -> int:
    """The worker of that name."""
    return int(name[1:])


def record(fleet: Fleet, worker: SimWorker) -> Worker:
    """What a worker tells of itself that never changes."""
    spec = fleet.config.spec
    return Worker(
        worker_id=worker_id(worker.number),
        incarnation=Incarnation("one"),
        role=worker.role,
        address=f"w{worker.number}",
        transfer_address=f"host{fleet.host_of[worker.number]}",
        layout_fingerprint="layout",
        model=ModelLimits("model", 1, 1 << 20, frozenset()),
        capacity=Usage(spec.sequences, spec.kv_tokens),
        running=Usage(0, 0),
        taken=frozenset(),
        draining=False,
        pid=worker.number,
        cost=spec.cost,
        prompt_lookahead_s=spec.lookahead_s,
        step_tokens=spec.step_tokens,
    )
