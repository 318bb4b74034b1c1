"""A fleet as a planner sees it, for tests of what it decides."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from baton.policy.cost import StepCost
from baton.policy.fleet import NOTHING, Role, Usage, Worker
from services.common.fleet.demand import DemandTotals
from services.planner.config import PlannerConfig
from services.planner.decision import Decision
from services.planner.observation import Observation, Pool
from services.planner.planner import Planner
from tests.support import policy

COST = StepCost(0.01, 1e-4, 1e-8, 2e-4, 2e-7, relative_error=0.05)
ROOM = Usage(64, 200_000)
NOTHING_YET = DemandTotals()
TWO = Pool(2, 2)
CONFIG = PlannerConfig(max_prefill=20, max_decode=20, season_s=3600, cold_start_s=30)
REQUEST = DemandTotals(
    requests=1,
    prompt_tokens=1000,
    computed_requests=1,
    new_tokens=1000,
    new_pairs=500_500,
    sequences=1,
    output_tokens=200,
    output_context=220_000,
    ttft_judged=1,
    ttft_held=1,
    itl_judged=1,
    itl_held=1,
)


def times(demand: DemandTotals, factor: float) -> DemandTotals:
    """So many requests like it."""
    return DemandTotals(*(factor * value for value in demand.values()))


def workers(role: Role, count: int, running: Usage = NOTHING, **more: object) -> list[Worker]:
    """Workers of a role that are all alike."""
    names = [f"{role.value}-{number}" for number in range(count)]
    return [
        policy.worker(
            name, role, capacity=ROOM, running=running, cost=COST, step_tokens=2048, **more
        )
        for name in names
    ]


def observed(
    at_s: float,
    totals: DemandTotals = NOTHING_YET,
    known: list[Worker] | None = None,
    prefill: Pool = TWO,
    decode: Pool = TWO,
    waiting: int = 0,
    queued_s: float = 0.0,
) -> Observation:
    """A moment; its workers are idle where nothing else is said."""
    if known is None:
        known = workers(Role.PREFILL, prefill.ready) + workers(Role.DECODE, decode.ready)
    pools = {Role.PREFILL: prefill, Role.DECODE: decode}
    return Observation(at_s, tuple(known), waiting, queued_s, totals, pools)


@dataclass
class World:
    """Applies what a planner decides: workers start late, requests meet what `each` says."""

    planner: Planner
    each: DemandTotals = REQUEST
    replicas: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(Role, 2))
    running: Usage = NOTHING
    """Of each decode worker."""
    waiting: int = 0
    queued_s: float = 0.0
    at_s: float = 3600.0 * 1000
    totals: DemandTotals = field(default_factory=DemandTotals)
    decisions: list[Decision] = field(default_factory=list)
    starts_s: float = 30.0
    _ready: dict[Role, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ready = {role: [0.0] * count for role, count in self.replicas.items()}

    def run(self, seconds: float, rate: float | Callable[[float], float]) -> list[Decision]:
        """So much time with so many requests a second. Returns the decisions."""
        first, end_s = len(self.decisions), self.at_s + seconds
        while self.at_s < end_s:
            self.step(rate(self.at_s) if callable(rate) else rate)
        return self.decisions[first:]

    def step(self, rate: float) -> Decision:
        """One look."""
        react_s = self.planner.config.react_s
        self.at_s += react_s
        self.totals += times(self.each, rate * react_s)
        pools = {
            role: Pool(len(times_s), sum(one <= self.at_s for one in times_s))
            for role, times_s in self._ready.items()
        }
        known = workers(Role.PREFILL, pools[Role.PREFILL].ready)
        known += workers(Role.DECODE, pools[Role.DECODE].ready, self.running)
        seen = Observation(self.at_s, tuple(known), self.waiting, self.queued_s, self.totals, pools)
        decision = self.planner.decide(seen)
        for change in decision.changes:
            assert change.current == self.replicas[change.role]
            self._ready[change.role] = sorted(self._ready[change.role])[: change.wanted]
            while len(self._ready[change.role]) < change.wanted:
                self._ready[change.role].append(self.at_s + self.starts_s)
            self.replicas[change.role] = change.wanted
        self.decisions.append(decision)
        return decision


def world(config: PlannerConfig = CONFIG, **changes: object) -> World:
    """A world with a new planner."""
    return replace(World(Planner(config)), **changes)
