"""One simulation of a fleet whose pools a scaler resizes while it runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from baton.policy.fleet import Role
from bench.sim.events import Action, Events
from bench.sim.fleet import Fleet, FleetConfig
from bench.sim.life import Life
from bench.sim.pools import Pools
from bench.sim.routers import RouterConfig, Routers
from bench.sim.scalers import SimScaler
from bench.sim.totals import Counted
from bench.sim.workload import Arrival
from services.planner.observation import Observation

PUBLISH_S = 1.0
"""Routers add to the fleet's sums so often."""
EPOCH_S = 1_800_000_000.0 - 1_800_000_000.0 % 86_400
"""The simulation's beginning in the planner's time: midnight of some day."""


@dataclass(frozen=True, slots=True)
class ScaledScenario:
    """A fleet at its beginning, what it is asked, and how long a worker takes to start."""

    fleet: FleetConfig
    arrivals: Sequence[Arrival]
    end_s: float
    cold_start_s: float = 120.0
    routers: RouterConfig = field(default_factory=RouterConfig)
    copies: int = 1
    """As many as the arrivals have."""
    sample_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The pools at one moment: workers asked for and workers that serve, by role."""

    at_s: float
    replicas: dict[Role, int]
    serving: dict[Role, int]


@dataclass(frozen=True, slots=True)
class Scaled:
    """What came of it."""

    lives: Sequence[Life]
    samples: Sequence[Sample]
    gpu_hours: float
    """Of all workers, one GPU each, from when they were asked for until they had left."""
    duration_s: float

    @property
    def goodput(self) -> float:
        """Requests a second that held both targets."""
        return self.held * len(self.lives) / self.duration_s

    @property
    def held(self) -> float:
        """Share of all requests that held both."""
        return _share(self.lives, lambda life: life.holds_ttft() and life.holds_itl())

    @property
    def ttft_held(self) -> float:
        """Share that had its first token in time; who is refused has none."""
        return _share(self.lives, Life.holds_ttft)

    @property
    def itl_held(self) -> float:
        """Of those that have ended, the share whose tokens came fast enough."""
        return _share([life for life in self.lives if life.ended_s is not None], Life.holds_itl)

    @property
    def refused(self) -> float:
        """Share that was refused."""
        return _share(self.lives, lambda life: life.refused)

    def turns(self, role: Role) -> int:
        """How often its pool went from growing to shrinking or back."""
        sizes = [sample.replicas[role] for sample in self.samples]
        steps = [new - old for old, new in pairwise(sizes) if new != old]
        return sum((a > 0) != (b > 0) for a, b in pairwise(steps))


def run(scenario: ScaledScenario, scaler: SimScaler) -> Scaled:
    """Runs it until its end, and then, unscaled, until all requests have ended."""
    running = _Running(scenario, scaler)
    return running.finish()


class _Running:
    """The parts of one simulation."""

    def __init__(self, scenario: ScaledScenario, scaler: SimScaler) -> None:
        self._scenario = scenario
        self._scaler = scaler
        self._events = Events()
        self._fleet = Fleet(scenario.fleet, self._events)
        self._routers = Routers(self._fleet, scenario.routers)
        self._pools = Pools(self._fleet, self._routers, scenario.cold_start_s)
        self._fleet.dispatcher = self._counted = Counted(self._routers)
        self._totals = self._counted.totals
        self._samples: list[Sample] = []
        self._busy_s: dict[int, float] = {}
        self._asked_s = 0.0

    def finish(self) -> Scaled:
        scenario, events = self._scenario, self._events
        self._fleet.start(scenario.arrivals, scenario.copies)
        self._publish()
        self._sample()
        self._scale()
        events.run(scenario.end_s)
        seconds = self._pools.worker_seconds()
        while self._fleet.unfinished and events.now < scenario.end_s + 600:
            events.run(events.now + 1.0)
        return Scaled(self._fleet.lives, self._samples, seconds / 3600, scenario.end_s)

    def _publish(self) -> None:
        self._totals = self._counted.totals
        self._again(PUBLISH_S, self._publish)

    def _sample(self) -> None:
        counts = self._pools.counts()
        self._samples.append(
            Sample(
                self._events.now,
                {role: pool.replicas for role, pool in counts.items()},
                {role: pool.ready for role, pool in counts.items()},
            )
        )
        self._again(self._scenario.sample_s, self._sample)

    def _scale(self) -> None:
        for wish in self._scaler.decide(self._observation(), self._busy()):
            self._pools.resize(wish.role, wish.wanted, wish.victims)
        self._again(self._scaler.period_s, self._scale)

    def _again(self, delay_s: float, action: Action) -> None:
        if self._events.now + delay_s < self._scenario.end_s:
            self._events.after(delay_s, action)

    def _observation(self) -> Observation:
        """What the planner's service reads: snapshot, sums, and the orchestrator's counts."""
        queue = self._routers.queue
        return Observation(
            at_s=EPOCH_S + self._events.now,
            workers=tuple(queue.workers()),
            waiting=queue.waiting,
            queued_s=queue.queued_s,
            totals=self._totals,
            pools=self._pools.counts(),
        )

    def _busy(self) -> dict[Role, list[float]]:
        """Of each serving worker, the busy share since the last time."""
        seconds = self._events.now - self._asked_s
        self._asked_s = self._events.now
        shares: dict[Role, list[float]] = {}
        for role in Role:
            shares[role] = []
            for worker in self._pools.serving(role):
                before = self._busy_s.get(worker.number)
                self._busy_s[worker.number] = worker.busy_s
                if before is not None and seconds > 0:
                    shares[role].append(min(1.0, (worker.busy_s - before) / seconds))
        return shares


def _share(lives: Sequence[Life], test: Callable[[Life], bool]) -> float:
    return sum(map(test, lives)) / max(1, len(lives))
