"""Keeps pools from swinging: they grow at once, and shrink late and little by little."""

import math
from collections import deque
from dataclasses import dataclass, field

from services.planner.config import PlannerConfig

STEP = 0.2
"""Share of a pool that goes at once: at least a worker."""


@dataclass(slots=True)
class Settler:
    """One pool's needs in the last `scale_down_after_s`."""

    config: PlannerConfig
    needs: deque[tuple[float, int]] = field(default_factory=deque)
    began_s: float = math.inf
    shrunk_s: float = -math.inf

    def hold(self, at_s: float, current: int, need: int) -> tuple[int, str]:
        """How many the pool may have, with `need` from now on: at least so many, and what kept
        it from being fewer (empty: nothing)."""
        after_s = self.config.scale_down_after_s
        self.began_s = min(self.began_s, at_s)
        while self.needs and self.needs[-1][1] <= need:
            self.needs.pop()
        self.needs.append((at_s, need))
        while self.needs[0][0] < at_s - after_s:
            self.needs.popleft()
        if need >= current:
            return need, ""
        if at_s - self.began_s < after_s:
            return current, f"the load has been known for less than {after_s:.0f} s"
        highest = min(current, self.needs[0][1])
        if highest == current:
            return current, f"{highest} were needed within the last {after_s:.0f} s"
        wait_s = self.shrunk_s + self.config.period_s - at_s
        if wait_s > 0:
            return current, f"the last one was stopped less than {self.config.period_s:.0f} s ago"
        return max(highest, current - max(1, math.floor(STEP * current))), ""

    def shrunk(self, at_s: float) -> None:
        """Workers were stopped."""
        self.shrunk_s = at_s
