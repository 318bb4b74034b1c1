"""What a planner is at: written by its loop, read by its metrics."""

import time
from collections import Counter
from collections.abc import Callable, Mapping

from baton.errors import BatonError
from baton.policy.fleet import Role
from services.common.telemetry.tally import SECONDS_BUCKETS, Tally
from services.planner.decision import Change, Decision
from services.planner.observation import Pool
from services.planner.scaler import ScaleConflict, ScaleDenied, ScaleUnavailable

Failure = str
"""What kind of failure: one of FAILURES."""

FAILURES: tuple[Failure, ...] = ("conflict", "denied", "unavailable", "redis", "bug")


class Standing:
    """Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sound_at = clock()
        self._turned_at = clock()
        self.pools: Mapping[Role, Pool] = {}
        """As seen last."""
        self.decision: Decision | None = None
        """The last one."""
        self.done: Counter[tuple[Role, str, str]] = Counter()
        """Changes by role, direction and cause; in a dry run, those that would have been."""
        self.failures: Counter[Failure] = Counter()
        self.decide_s = Tally(SECONDS_BUCKETS)

    @property
    def unsound_s(self) -> float:
        """For so long no round has ended as it should."""
        return self._clock() - self._sound_at

    @property
    def silent_s(self) -> float:
        """For so long no round has ended at all."""
        return self._clock() - self._turned_at

    def round_ended(self, *, sound: bool) -> None:
        """`sound`: all was seen, and what was to be done is done."""
        self._turned_at = self._clock()
        if sound:
            self._sound_at = self._turned_at

    def failed(self, error: Exception) -> None:
        """Counts it."""
        self.failures[_kind(error)] += 1

    def did(self, change: Change) -> None:
        """Counts it."""
        self.done[change.role, change.direction, change.cause.value] += 1

    def wanted(self, role: Role) -> int:
        """Workers that the last decision is for."""
        changes = self.decision.changes if self.decision else ()
        wanted = [change.wanted for change in changes if change.role is role]
        return wanted[0] if wanted else self.pools[role].replicas


def _kind(error: Exception) -> Failure:
    match error:
        case ScaleConflict():
            return "conflict"
        case ScaleDenied():
            return "denied"
        case ScaleUnavailable():
            return "unavailable"
        case BatonError():
            return "redis"
        case _:
            return "bug"
