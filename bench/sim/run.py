"""One simulation from its settings to its result."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.policy.fleet import Role
from bench.sim.balancers import BALANCERS, Balancer
from bench.sim.events import Events
from bench.sim.fleet import Fleet, FleetConfig
from bench.sim.measure import Result, summary
from bench.sim.routers import RouterConfig, Routers
from bench.sim.workload import Line, arrivals

BATON = "baton"
POLICIES = (BATON, *BALANCERS)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet, who dispatches, and what part of the trace it gets."""

    fleet: FleetConfig
    routers: RouterConfig
    lines: Sequence[Line]
    copies: int = 1
    count: int | None = None
    """Requests. None: the whole trace."""
    warm_up: float = 0.1
    """Share of the time whose requests are not counted."""
    drain_s: float = 120.0
    """How long the simulation goes on after the last arrival."""


def simulate(scenario: Scenario, policy: str, rate: float, load: float = 0.0) -> Result:
    """Runs a scenario at `rate` requests a second, of which `load` is only told on."""
    fleet, begin_s, end_s, busy = _run(scenario, policy, rate)
    until_s = end_s + scenario.drain_s
    while fleet.unfinished and fleet.events.now < until_s:
        fleet.events.run(min(until_s, fleet.events.now + 1.0))
    window_s = end_s - begin_s
    used = {role: _mean([busy[worker.number] for worker in fleet.of(role)]) for role in Role}
    prompts = used[Role.PREFILL if scenario.fleet.prefill else Role.DECODE] / window_s
    decode = used[Role.DECODE] / window_s
    counted = [life for life in fleet.lives if life.arrived_s >= begin_s]
    return summary(policy, load, counted, window_s, fleet.gaps, (prompts, decode))


def saturation(scenario: Scenario, policy: str, rate: float) -> float:
    """Requests that are finished a second, within and without their targets, while `rate` are
    asked for and none is refused."""
    open_to_all = replace(scenario, routers=replace(scenario.routers, refuse=False))
    fleet, begin_s, end_s, _ = _run(open_to_all, policy, rate)
    ended = [life.ended_s for life in fleet.lives if life.ended_s is not None]
    return sum(begin_s <= at_s <= end_s for at_s in ended) / (end_s - begin_s)


def _run(scenario: Scenario, policy: str, rate: float) -> tuple[Fleet, float, float, list[float]]:
    """The fleet at the last arrival, the window that counts, and each worker's busy time in it."""
    fleet = Fleet(scenario.fleet, Events())
    if policy == BATON:
        fleet.dispatcher = Routers(fleet, scenario.routers)
    else:
        fleet.dispatcher = Balancer(fleet, policy)
    seed = scenario.fleet.seed
    planned = arrivals(list(scenario.lines), rate, scenario.copies, scenario.count, seed)
    end_s = planned[-1].at_s
    begin_s = scenario.warm_up * end_s
    fleet.start(planned, scenario.copies)
    fleet.gaps.open = False
    fleet.events.run(begin_s)
    fleet.gaps.open = True
    before = [worker.busy_s for worker in fleet.workers]
    fleet.events.run(end_s)
    busy = [worker.busy_s - start for worker, start in zip(fleet.workers, before, strict=True)]
    return fleet, begin_s, end_s, busy


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
