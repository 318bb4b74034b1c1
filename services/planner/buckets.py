"""Gathers demand into the pieces that forecasts are made from."""

from dataclasses import dataclass, field

from services.common.fleet.demand import DemandTotals
from services.planner.config import PlannerConfig
from services.planner.history import SEASONS, History
from services.planner.meter import traffic

ENOUGH = 0.5
"""Share of a piece that must have been seen, so that it counts."""


@dataclass(slots=True)
class Bucket:
    """The piece that is not over yet."""

    config: PlannerConfig
    number: int = 0
    seconds: float = 0.0
    demand: DemandTotals = field(default_factory=DemandTotals)

    def add(self, at_s: float, seconds: float, demand: DemandTotals, history: History) -> History:
        """More of it. Returns the history, with this piece if it is over now."""
        bucket_s = self.config.bucket_s
        number = int((at_s - seconds / 2) // bucket_s)
        if number != self.number:
            if self.seconds >= ENOUGH * bucket_s:
                history = history.with_bucket(
                    self.number,
                    traffic(self.demand, self.demand.requests / self.seconds),
                    keep=round(SEASONS * self.config.season_s / bucket_s),
                )
            self.number, self.seconds, self.demand = number, 0.0, DemandTotals()
        self.seconds += seconds
        self.demand += demand
        return history
