"""Who says how many workers a simulated fleet is to have.

The HPA follows the published algorithm of Kubernetes' HorizontalPodAutoscaler with its default
behaviour. A worker's CPU use is modelled as the share of the time in which its engine steps:
while it does, the thread that drives it is busy.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from baton.naming import WorkerId
from baton.policy.fleet import Role
from services.planner.config import PlannerConfig
from services.planner.decision import Change
from services.planner.observation import Observation
from services.planner.planner import Planner

Busy = Mapping[Role, Sequence[float]]
"""By role: the busy share of each serving worker since the scaler was asked last."""


@dataclass(frozen=True, slots=True)
class Wish:
    """So many workers of a role; of those that go, `victims` first."""

    role: Role
    wanted: int
    victims: Sequence[WorkerId] = ()


class SimScaler(Protocol):
    """Asked every `period_s`, with what can be seen of the fleet then."""

    period_s: float

    def decide(self, seen: Observation, busy: Busy) -> Sequence[Wish]:
        """What is to change now."""


class Static:
    """Changes nothing."""

    period_s = 60.0

    def decide(self, _seen: Observation, _busy: Busy) -> Sequence[Wish]:
        return ()


class Planned:
    """Baton's planner, as its service calls it."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.changes: list[tuple[float, Change]] = []
        """What it decided, and when."""
        self.period_s = planner.config.react_s

    def decide(self, seen: Observation, _busy: Busy) -> Sequence[Wish]:
        changes = self.planner.decide(seen).changes
        self.changes += [(seen.at_s, change) for change in changes]
        return [Wish(one.role, one.wanted, one.victims) for one in changes]


@dataclass(frozen=True, slots=True)
class HpaConfig:
    """Kubernetes' defaults."""

    target: float = 0.7
    """Mean CPU use that it aims at."""
    tolerance: float = 0.1
    """Relative distance from the target within which it does nothing."""
    period_s: float = 15.0
    stabilization_s: float = 300.0
    """It goes down to the highest number that it wanted within this time."""
    most_added: int = 4
    """In one period it adds so many, or doubles where that is more."""


class Hpa:
    """A HorizontalPodAutoscaler for each role."""

    def __init__(self, bounds: PlannerConfig, config: HpaConfig | None = None) -> None:
        self.config = config or HpaConfig()
        self.period_s = self.config.period_s
        self._bounds = bounds
        self._wanted: dict[Role, deque[tuple[float, int]]] = {role: deque() for role in Role}

    def decide(self, seen: Observation, busy: Busy) -> Sequence[Wish]:
        return [Wish(role, self._wants(role, seen, busy[role])) for role in Role]

    def _wants(self, role: Role, seen: Observation, busy: Sequence[float]) -> int:
        current = seen.pools[role].replicas
        wanted = recommended(self.config, current, busy)
        past = self._wanted[role]
        past.append((seen.at_s, wanted))
        while past[0][0] <= seen.at_s - self.config.stabilization_s:
            past.popleft()
        if wanted < current:
            wanted = min(current, max(one for _, one in past))
        wanted = min(wanted, max(2 * current, current + self.config.most_added))
        return max(self._bounds.least(role), min(self._bounds.most(role), wanted))


def recommended(config: HpaConfig, current: int, busy: Sequence[float]) -> int:
    """ceil(current * use / target). Pods that are not ready yet count as idle where that makes it
    add fewer."""
    if not busy:
        return current
    ratio = sum(busy) / len(busy) / config.target
    if abs(ratio - 1) <= config.tolerance:
        return current
    if ratio < 1 or len(busy) >= current:
        return math.ceil(ratio * len(busy))
    ratio = sum(busy) / current / config.target
    if ratio <= 1 + config.tolerance:
        return current
    return math.ceil(ratio * current)
