"""Whether a request is let in: by what it must expect, against what it asks.

Refuses with words and a time after which trying again helps. Knows no queue: what is ahead of a
request there is told to it.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.errors import Exhausted
from baton.policy.admission import Allowance, Outlook, allowance, retry_after_s
from baton.policy.fleet import Worker
from baton.policy.placement import Plan

MOST_RETRY_S = 60.0
"""Nobody is told to come back later for others' sake."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What a request can bear before its first token."""

    target_s: float
    """Time to first token to hold, from its arrival."""
    slack_s: float
    """By how much a prediction may miss the target."""
    waited_s: float = 0.0
    """How long ago it arrived."""
    pace: float = 1.0
    """Seconds that pass for each second that workers' costs account for."""

    @property
    def left_s(self) -> float:
        """Seconds from now until its first token is late beyond the slack."""
        return self.target_s + self.slack_s - self.waited_s

    def wait_s(self, own_s: float) -> float:
        """How long its prompt, which takes `own_s`, may wait for a worker to begin with it; both
        as workers' costs account for."""
        return max(0.0, self.left_s / self.pace - own_s)

    def allowance(self, outlook: Outlook, own_s: float) -> Allowance:
        """What may be ahead of it in the queue."""
        return allowance(outlook, self.wait_s(own_s))

    def check_reach(self, idle_s: float) -> None:
        """Raises Exhausted when an idle fleet, where its prompt takes `idle_s`, is too slow."""
        if idle_s > self.target_s + self.slack_s:
            raise Exhausted(
                f"ttft_target: the first token takes {idle_s:.3g} s on an idle worker, and the "
                f"target is {self.target_s:.3g} s",
                reason="TARGET_OUT_OF_REACH",
            )

    def refusal(
        self, outlook: Outlook, own_s: float, ahead_s: float, ahead: int, promises: "Promises"
    ) -> Exhausted:
        """Why it was not let in with so much ahead of it."""
        start_s = outlook.start_s(ahead_s, ahead)
        predicted_s = self.waited_s + self.pace * (start_s + own_s)
        after_s = self.pace * retry_after_s(outlook, ahead_s, ahead, self.wait_s(own_s))
        share_s = self.pace * own_s / max(1, outlook.prompt_workers)
        return Exhausted(
            f"ttft_target: the first token would come after {predicted_s:.3g} s, and the target "
            f"is {self.target_s:.3g} s",
            reason="TARGET_MISSED",
            retry_after=promises.after_s(after_s, share_s),
        )


class Promises:
    """When those that were refused were told to come back: each behind the others, since they
    were all told of the same room. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: list[tuple[float, float]] = []
        """Heap of (when, how long the fleet takes for it)."""
        self._sum_s = 0.0

    def after_s(self, alone_s: float, share_s: float) -> float:
        """Seconds after which one more may come back that could after `alone_s` if it were
        alone, and that the fleet takes `share_s` for."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            self._sum_s -= heapq.heappop(self._due)[1]
        after_s = min(alone_s + max(0.0, self._sum_s), max(alone_s, MOST_RETRY_S))
        heapq.heappush(self._due, (now + after_s, share_s))
        self._sum_s += share_s
        return after_s


def idle_s(plans: Sequence[Plan]) -> float:
    """Seconds that the prompt takes on the best worker of the plans, were it idle; 0: unknown."""
    times = [one.prompt_s for plan in plans for one in plan[0].candidates if _measured(one.worker)]
    return min(times, default=0.0)


def _measured(worker: Worker) -> bool:
    return worker.cost.relative_error < 1
