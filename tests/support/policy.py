"""Workers and demands for tests of the policy, plain and as hypothesis strategies."""

from collections.abc import Mapping

from hypothesis import strategies as st

from baton.naming import Incarnation, RequestId, WorkerId
from baton.policy.cost import StepCost
from baton.policy.fleet import NOTHING, Demand, Load, ModelLimits, Role, Usage, Worker

COST = StepCost(0.01, 1e-4, 1e-8, 1e-3, 1e-6)
ROOM = Usage(8, 10_000)


def worker(
    name: str = "w",
    role: Role = Role.DECODE,
    *,
    capacity: Usage = ROOM,
    running: Usage = NOTHING,
    pending: Usage = NOTHING,
    backlog_s: float = 0.0,
    pending_prompt_s: float = 0.0,
    lookahead_s: float = 1.0,
    decoding_tokens: int = 0,
    itl_target_s: float | None = None,
    sequence_limit: int | None = None,
    layout: str = "x",
    context_tokens: int = 10_000,
    draining: bool = False,
    cost: StepCost = COST,
    step_tokens: int = 256,
    host: str | None = None,
) -> Worker:
    return Worker(
        worker_id=WorkerId(name),
        incarnation=Incarnation("one"),
        role=role,
        address=f"{name}:1",
        transfer_address=host or f"{name}:2",
        layout_fingerprint=layout,
        model=ModelLimits("model", 100, context_tokens, frozenset({1})),
        capacity=capacity,
        running=running,
        taken=frozenset(),
        draining=draining,
        pid=1,
        cost=cost,
        load=Load(backlog_s, decoding_tokens, itl_target_s, sequence_limit),
        prompt_lookahead_s=lookahead_s,
        step_tokens=step_tokens,
        pending=pending,
        pending_prompt_s=pending_prompt_s,
    )


def demand(
    name: str = "r",
    prompt: int = 100,
    most: int = 100,
    *,
    emitted: int = 0,
    itl_target_s: float | None = None,
    cached: Mapping[str, int] | None = None,
) -> Demand:
    known = {WorkerId(worker_id): tokens for worker_id, tokens in (cached or {}).items()}
    return Demand(RequestId(name), 0, prompt, most, emitted, itl_target_s, known)


NAMES = [f"w{number}" for number in range(12)]
usages = st.builds(Usage, st.integers(0, 6), st.integers(0, 1200))
seconds = st.floats(0, 1000)
costs = st.builds(
    StepCost,
    st.floats(0.001, 0.1),
    st.floats(0, 1e-3),
    st.floats(0, 1e-6),
    st.floats(0, 1e-2),
    st.floats(0, 1e-5),
)
workers = st.builds(
    worker,
    st.sampled_from(NAMES),
    st.sampled_from(Role),
    capacity=usages,
    running=usages,
    pending=usages,
    backlog_s=st.floats(0, 3),
    pending_prompt_s=st.floats(0, 3),
    decoding_tokens=st.integers(0, 1200),
    sequence_limit=st.none() | st.integers(0, 8),
    layout=st.sampled_from(["x", "y"]),
    context_tokens=st.integers(1, 1200),
    draining=st.booleans(),
    host=st.sampled_from(["a", "b"]),
)
fleets = st.lists(workers, unique_by=lambda each: each.worker_id, max_size=12)
demands = st.builds(
    demand,
    st.text(max_size=4),
    st.integers(1, 800),
    st.integers(1, 800),
    itl_target_s=st.none() | st.floats(0.001, 1),
    cached=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1000), max_size=4),
)
