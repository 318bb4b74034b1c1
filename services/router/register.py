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
    """What happened since the start.

    Each request that ended is one of `completed`, `cancelled`, `refused` and `failed`.
    """

    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    """Their targets could not be held."""
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
    ended: Counter[tuple[Outcome, str]] = field(default_factory=Counter, compare=False)
    """Requests by how they ended and why."""


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
            self._count(Outcome.of(error), reason_of(error))
            raise
        self._count(Outcome.COMPLETED, "")

    async def close(self, grace_s: float) -> bool:
        """Lets nobody in any more, and waits for those inside. False when the grace was too short.

        Closing again is possible.
        """
        return await self._gate.close(grace_s)

    def _count(self, outcome: Outcome, reason: str) -> None:
        self.counters.ended[outcome, reason] += 1
        setattr(self.counters, outcome.value, getattr(self.counters, outcome.value) + 1)

    def _check_admission(self) -> None:
        if not self._gate.open:
            raise errors.Unavailable("the router is shutting down", reason="DRAINING")
        if self.running >= self._most:
            raise errors.Exhausted(
                f"{self.running} requests are in progress, and no more are taken",
                reason="TOO_MANY_REQUESTS",
                retry_after=_RETRY_AFTER_S,
            )
