"""When to try again what failed, and whether it is worth a word in the log."""

import logging
import time
from collections.abc import Callable

from services.planner.scaler import ScaleConflict, ScaleDenied, ScaleError

log = logging.getLogger(__name__)

FIRST_S = 5.0
MOST_S = 60.0


class Patience:
    """Waits longer after each failure: twice as long where there was no answer, the longest at
    once where something is forbidden, not at all where someone else was faster."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wait_s = 0.0
        self._until = float("-inf")
        self._told = ""

    @property
    def over(self) -> bool:
        """Whether to try now."""
        return self._clock() >= self._until

    def failed(self, error: ScaleError) -> None:
        """Logs what is new, and says when to try again."""
        if isinstance(error, ScaleConflict):
            log.info("%s; deciding anew", error)
            return
        denied = isinstance(error, ScaleDenied)
        self._wait_s = MOST_S if denied else min(MOST_S, max(FIRST_S, 2 * self._wait_s))
        self._until = self._clock() + self._wait_s
        if str(error) != self._told:
            self._told = str(error)
            level = logging.ERROR if denied else logging.WARNING
            log.log(level, "%s; trying again every %g s at most", error, MOST_S)

    def worked(self) -> None:
        """It is all right again."""
        if self._told:
            log.info("the orchestrator answers again")
        self._wait_s, self._until, self._told = 0.0, float("-inf"), ""
