"""How long workers take from being asked for until they serve."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from baton.policy.fleet import Role
from services.planner.config import PlannerConfig
from services.planner.history import History
from services.planner.observation import Pool

NEW = 0.3
"""Weight of the last start in the mean."""
LONGEST = 10.0
"""Most that one start counts for, as a multiple of what is expected: who waited for hardware
did not start slowly."""


@dataclass(slots=True)
class ColdStarts:
    """Measures starts; those that were cut short by a change count for nothing."""

    config: PlannerConfig
    replicas: dict[Role, int] = field(default_factory=dict)
    asked_s: dict[Role, float] = field(default_factory=dict)

    def watch(self, at_s: float, pools: Mapping[Role, Pool], history: History) -> History:
        """The pools at another moment. Returns the history, with another mean if workers have
        come."""
        for role, pool in pools.items():
            before = self.replicas.get(role, pool.replicas)
            self.replicas[role] = pool.replicas
            if pool.replicas != before:
                self.asked_s.pop(role, None)
                if pool.replicas > before:
                    self.asked_s[role] = at_s
            if role in self.asked_s and pool.ready >= pool.replicas:
                took_s = at_s - self.asked_s.pop(role)
                history = self._measured(role, took_s, history)
        return history

    def _measured(self, role: Role, took_s: float, history: History) -> History:
        mean_s = history.cold_start_s.get(role)
        took_s = min(took_s, LONGEST * max(self.config.cold_start_s, self.config.react_s))
        if mean_s is not None:
            took_s = (1 - NEW) * mean_s + NEW * took_s
        return history.with_cold_start(role, took_s)
