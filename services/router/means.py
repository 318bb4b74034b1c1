"""What requests of late took, as moving means. Knows no workers and no requests."""

LEAST_WEIGHT = 0.02
ENOUGH = 8
"""First tokens without which nothing is known of the pace."""
PACE_WEIGHT = 0.1
"""Workers' costs follow within seconds; what they don't account for must not lag behind them."""
LEAST_PACE, MOST_PACE = 0.5, 5.0
OUTPUT_TOKENS = 256.0
"""Tokens of an output, until one has ended."""


class MovingMean:
    """The mean of the values added, old ones fading; `initial` until there is one."""

    def __init__(self, initial: float, least_weight: float = LEAST_WEIGHT) -> None:
        """`least_weight`: of a new value, once there have been many."""
        self.value = initial
        self.count = 0
        self._least_weight = least_weight

    def add(self, value: float) -> None:
        """Counts a value."""
        self.count += 1
        self.value += (value - self.value) * max(self._least_weight, 1 / self.count)


class Means:
    """Means over a router's requests. Not thread-safe."""

    def __init__(self, handoff_s: float) -> None:
        """`handoff_s` holds until a handoff was measured."""
        self._handoff = MovingMean(handoff_s)
        self._output = MovingMean(OUTPUT_TOKENS)
        self._modelled = MovingMean(0.0, PACE_WEIGHT)
        self._measured = MovingMean(0.0, PACE_WEIGHT)

    @property
    def handoff_s(self) -> float:
        """What a handoff adds to the time between its first two tokens."""
        return self._handoff.value

    @property
    def pace(self) -> float:
        """Seconds that pass for each second that workers' costs account for: what lies between
        their steps, and what slows all of them down, is in no worker's model."""
        if self._modelled.count < ENOUGH or self._modelled.value <= 0:
            return 1.0
        return max(LEAST_PACE, min(MOST_PACE, self._measured.value / self._modelled.value))

    def stay_s(self, step_s: float) -> float:
        """How long a sequence stays in a batch whose steps take `step_s`."""
        return self._output.value * step_s

    def observe_handoff(self, gap_s: float, step_s: float) -> None:
        """Counts a handoff: the time from its first token to the second, and that of a step."""
        self._handoff.add(max(0.0, gap_s - step_s))

    def observe_first_token(self, modelled_s: float, measured_s: float) -> None:
        """Counts a first token, by when workers' costs had it coming and by when it came."""
        self._modelled.add(modelled_s)
        self._measured.add(measured_s)

    def observe_output(self, tokens: int) -> None:
        """Counts an output that ended."""
        self._output.add(float(tokens))
