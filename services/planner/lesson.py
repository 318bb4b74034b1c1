"""What a pool learns from alarms: that its model asks for too few."""

from dataclasses import dataclass

from services.planner.config import PlannerConfig

FIRST, LONGEST = 2.0, 16.0
"""How long a lesson holds at first and at most, in times after which pools shrink."""


@dataclass(slots=True)
class Lesson:
    """Workers on top of what the load needs. One that was forgotten too early, since the next
    alarm came soon after, holds for twice as long."""

    config: PlannerConfig
    workers: int = 0
    until_s: float = 0.0
    hold_s: float = 0.0

    def extra(self, at_s: float) -> int:
        """Workers on top."""
        return self.workers if at_s < self.until_s else 0

    def learn(self, at_s: float, workers: int) -> None:
        """So many on top would have been enough."""
        base_s = self.config.scale_down_after_s
        soon = at_s < self.until_s + 2 * self.hold_s
        if not soon:
            self.hold_s = FIRST * base_s
        elif at_s >= self.until_s:
            self.hold_s = min(2 * self.hold_s, LONGEST * base_s)
        self.workers = max(self.extra(at_s), workers)
        self.until_s = at_s + self.hold_s
