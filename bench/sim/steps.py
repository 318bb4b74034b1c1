"""A run of steps in which the same batch decodes and nothing else. Knows no worker, no events."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Run:
    """Decode steps of one batch, one after the other; each takes a little longer."""

    start_s: float
    count: int
    first_s: float
    growth_s: float

    def length_s(self, count: int) -> float:
        """Seconds of the first `count` steps."""
        return count * self.first_s + self.growth_s * count * (count - 1) / 2

    def steps_until(self, now_s: float) -> int:
        """Steps that have begun by then: one at least."""
        elapsed = now_s - self.start_s
        half = self.growth_s / 2
        linear = self.first_s - half
        if half * elapsed < 1e-12:
            count = elapsed / linear
        else:
            count = (-linear + math.sqrt(linear * linear + 4 * half * elapsed)) / (2 * half)
        return max(1, min(self.count, math.ceil(count - 1e-9)))
