"""The requests in progress: how many there are, and how earlier ones ended.

Knows nothing of what a request does.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from baton import errors
from services.common.gate import Gate
from services.router.report import Outcome, reason_of

_RETRY_AFTER_S = 1.0


@dataclass(slots=True)
class Counters:
    """What happened since the start."""

    ended: Counter[tuple[Outcome, str]] = field(default_factory=Counter)
    """Requests by how they ended and why."""
    limited: int = 0
    """Kept out by their tenants' limits; they never ran, and are none of the others."""
    retried_legs: int = 0
    """Calls that were made again after a worker failed or refused."""
    resumed: int = 0
    """Sequences that went on, after a decode worker failed, from KV that was there still."""
    recomputed: int = 0
    """Sequences that went on, after a decode worker failed, with their KV computed again."""
    migrated: int = 0
    """Times that a sequence moved with its KV."""
    degraded: int = 0
    """Requests placed while the workers of one role were gone."""
    local: int = 0
    """Requests whose prompt a decode worker computed because that was cheaper."""
    ttft_held: int = 0
    """Completed requests whose first token came within its target."""
    itl_held: int = 0
    """Completed requests whose mean inter-token latency was within its target."""

    def count(self, outcome: Outcome) -> int:
        """Requests that ended so."""
        return sum(count for (how, _), count in self.ended.items() if how is outcome)


class Register:
    """Lets at most `most` requests run at a time, and none once it is closed. Not thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._gate = Gate()
        self.counters = Counters()

    @property
    def running(self) -> int:
        """Requests in progress."""
        return self._gate.inside

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request runs inside the block; how the block ends is counted.

        Raises Exhausted where too many run, Unavailable once closed.
        """
        try:
            self._check_admission()
            with self._gate.one():
                yield
        except BaseException as error:
            self.counters.ended[Outcome.of(error), reason_of(error)] += 1
            raise
        self.counters.ended[Outcome.COMPLETED, ""] += 1

    async def close(self, grace_s: float) -> bool:
        """Lets nobody in any more, and waits for those inside. False when the grace was too short.

        Closing again is possible.
        """
        return await self._gate.close(grace_s)

    def _check_admission(self) -> None:
        if not self._gate.open:
            raise errors.Unavailable("the router is shutting down", reason="DRAINING")
        if self.running >= self._most:
            raise errors.Exhausted(
                f"{self.running} requests are in progress, and no more are taken",
                reason="TOO_MANY_REQUESTS",
                retry_after=_RETRY_AFTER_S,
            )
