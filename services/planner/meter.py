"""What is asked of the fleet at present, from sums that grow. Knows no clock."""

import math
from collections import deque

from baton.policy.sizing import Traffic
from services.common.fleet.demand import DemandTotals
from services.planner.config import PlannerConfig

ENOUGH = 100
"""Requests that a rate is taken from, where the window may be made longer for it."""
LIKE = 200
"""Requests that their mean size is taken from, in the same way: sizes vary more."""
LONG = 5
"""The longest window, in periods."""
SHORT = 3
"""The shortest, in looks."""
SURE = 2.0
"""Standard deviations that a burst must be above what is usual."""


class Meter:
    """Readings of the last few minutes. Sums that went back begin anew."""

    def __init__(self, config: PlannerConfig) -> None:
        self._short_s = SHORT * config.react_s
        self._period_s = config.period_s
        self._long_s = LONG * config.period_s
        self._readings: deque[tuple[float, DemandTotals]] = deque()
        self._shape: DemandTotals | None = None
        """The last demand with requests that ended: what requests are like."""

    def add(self, at_s: float, totals: DemandTotals) -> tuple[float, DemandTotals] | None:
        """A later reading. Returns the seconds and the demand since the last one; None where
        they are not known."""
        last_s, last = self._readings[-1] if self._readings else (at_s, totals)
        since = totals - last
        if min(since.values()) < -1e-6:
            self._readings.clear()
        self._readings.append((at_s, totals))
        while self._readings[0][0] < at_s - self._long_s - 1e-6:
            self._readings.popleft()
        return (at_s - last_s, since) if len(self._readings) > 1 else None

    def window(self, seconds: float) -> tuple[float, DemandTotals]:
        """What came in the last `seconds`, or as long as is known, and how long that is."""
        if not self._readings:
            return 0.0, DemandTotals()
        end_s, end = self._readings[-1]
        since = end_s - seconds - 1e-6
        at_s, totals = next(one for one in self._readings if one[0] >= since)
        return end_s - at_s, end - totals

    def longest(self) -> tuple[float, DemandTotals]:
        """The same for all that is remembered."""
        return self.window(self._long_s)

    def present(self) -> Traffic | None:
        """What is asked for now: the mean of the last period, or of longer where few came; more
        where the last moments alone leave no doubt of it. None: not known yet."""
        seconds, recent = self.window(self._short_s)
        if seconds < self._short_s / 2:
            return None
        burst = (recent.requests - SURE * math.sqrt(recent.requests)) / seconds
        seconds, usual = self.window(self._period_s)
        shape = self._like(usual)
        if usual.requests < ENOUGH:
            seconds, usual = self.longest()
        return traffic(shape, max(burst, usual.requests / seconds))

    def _like(self, recent: DemandTotals) -> DemandTotals:
        if recent.computed_requests < LIKE:
            recent = self.longest()[1]
        if recent.computed_requests > 0 or self._shape is None:
            self._shape = recent
        return self._shape


def traffic(like: DemandTotals, requests: float) -> Traffic:
    """So many requests a second that are like those. They count when they come, all else when
    they end, and what was refused never was computed: so it goes by the mean of those that
    were."""
    prompt_tokens = requests * like.prompt_tokens / max(1.0, like.requests)
    ended = like.computed_requests
    if ended <= 0:
        return Traffic(requests, prompt_tokens, prompt_tokens=prompt_tokens)
    each = requests / ended
    return Traffic(
        requests,
        each * like.new_tokens,
        each * like.new_pairs,
        each * like.sequences,
        each * like.output_tokens,
        each * like.output_context,
        prompt_tokens,
    )
