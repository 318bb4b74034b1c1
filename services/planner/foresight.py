"""The load from now until a worker that is asked for now has served for a period: the present
one, and how it is foreseen to change from now on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from baton.policy.sizing import Traffic
from services.planner.config import PlannerConfig
from services.planner.forecast import forecast
from services.planner.history import History

DOUBT = 1.25
"""Most that may be foreseen for now, as a multiple of what there is, so that all of the change
counts: today may be no such day."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The load at a time."""

    at_s: float
    traffic: Traffic


@dataclass(slots=True)
class Foresight:
    """Forecasts anew when a piece of history is over; between, reads the last forecast."""

    config: PlannerConfig
    last: int | None = None
    ahead: Sequence[Traffic] = field(default=())

    def until(self, history: History, present: Traffic, at_s: float) -> Sequence[Foreseen]:
        """The load at the moments from now on between which it goes straight; none: too little
        is known."""
        config = self.config
        starts_s = max(history.cold_start_s.values(), default=config.cold_start_s)
        until_s = at_s + starts_s + config.period_s
        last = max(history.buckets, default=None)
        if not config.forecast or last is None:
            return ()
        steps = math.ceil(until_s / config.bucket_s) - last
        if steps < 1 or (steps - 1) * config.bucket_s > config.season_s:
            return ()
        if last != self.last or len(self.ahead) < steps:
            self.ahead = forecast(history, config.season_s, steps + 1)
            self.last = last
        if not self.ahead:
            return ()
        return self._read(present, at_s, until_s)

    def _read(self, present: Traffic, at_s: float, until_s: float) -> Sequence[Foreseen]:
        assert self.last is not None
        bucket_s = self.config.bucket_s
        middles = (self.last + 0.5 + np.arange(len(self.ahead))) * bucket_s
        times = [at_s, *(float(one) for one in middles if at_s < one < until_s), until_s]
        columns = np.array([load.values() for load in self.ahead]).T
        rows = np.array([np.interp(times, middles, column) for column in columns]).T
        usual = float(rows[0, 0])
        factor = min(1.0, DOUBT * present.requests / usual) if usual > 0 else 1.0
        loads = np.maximum(0.0, np.array(present.values()) + factor * (rows - rows[0]))
        return [
            Foreseen(at, Traffic(*load.tolist()))
            for at, load in zip(times[1:], loads[1:], strict=True)
        ]
