"""Whether a service is asked at all: a circuit breaker that opens at silence.

An answer of any kind is a sign of life and closes it. It opens when a connection fails, or when
a call that waited long enough got no answer and nobody else did meanwhile: one call's short
deadline or a slow answer among others prove nothing. Pure: knows no calls, tasks or loops.
"""

import math
from collections.abc import Callable

from baton import errors

Clock = Callable[[], float]
"""Seconds that never go back."""

SILENCE_S = 0.45
"""Silence of that length counts."""
QUICK_S = 0.5
"""Deadline for calls that the service answers at once; longer than the silence that counts."""
_FIRST_PROBE_S, _LONGEST_PROBE_S = 0.25, 2.0

SILENT_ERRORS = (errors.DeadlineExceeded, errors.Unavailable, errors.Cancelled)
"""What a call ends with that got no answer. All other errors are answers."""


class Breaker:
    """Closed at first. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = False
        self._heard_at = -math.inf
        self._probe_s = _FIRST_PROBE_S

    @property
    def is_open(self) -> bool:
        """Whether calls are to fail at once."""
        return self._open

    @property
    def probe_s(self) -> float:
        """How long the next probe takes, whether it waits for its answer or after a refusal."""
        return self._probe_s

    def silent_for(self, began: float) -> float:
        """Seconds without a sign of life, as seen by a call that began at `began`."""
        return self._clock() - max(began, self._heard_at)

    def heard(self) -> None:
        """The service answered something: closes."""
        self._heard_at = self._clock()
        self._open = False
        self._probe_s = _FIRST_PROBE_S

    def failed(self, began: float, error: errors.BatonError) -> None:
        """A call that began at `began` ended with `error`: opens if that proves silence."""
        if not isinstance(error, SILENT_ERRORS):
            self.heard()
        elif isinstance(error, errors.Unavailable) or (
            isinstance(error, errors.DeadlineExceeded) and self.silent_for(began) >= SILENCE_S
        ):
            self._open = True

    def probe_failed(self) -> None:
        """A probe got no answer: the next one takes longer."""
        self._probe_s = min(2 * self._probe_s, _LONGEST_PROBE_S)
