"""When a request will start, and whether that is soon enough.

Pure functions of what waits, what runs and what is asked. A prediction is the longer of two
waits: for a worker to compute the prompt, and for a place in a decode batch.
"""

import math
from dataclasses import dataclass

MIN_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Outlook:
    """The fleet as the next request in the queue meets it."""

    prompt_workers: int
    """Workers that compute prompts."""
    backlog_s: float
    """Prompt work that those have, or are about to have, over all."""
    free_sequences: int
    """Places in decode batches that nobody has."""
    sequences: int
    """Places in all."""
    stay_s: float
    """How long a sequence keeps its place, on average."""
    backlogs: tuple[tuple[float, int], ...] = ()
    """The same prompt work as seconds on so many workers each, the least first: who comes next
    waits for the first of them, not for the mean. Empty: only the sum is known."""

    def start_s(self, ahead_s: float, ahead: int) -> float:
        """Seconds until a request begins that has so much prompt work, and so many requests,
        before it in the queue."""
        return max(self._prompt_wait(ahead_s), self._decode_wait(ahead))

    def _prompt_wait(self, ahead_s: float) -> float:
        work_s, workers = ahead_s, 0
        for backlog_s, count in self.backlogs:
            if workers and work_s <= backlog_s * workers:
                break
            work_s += backlog_s * count
            workers += count
        if not workers:
            return (self.backlog_s + ahead_s) / max(1, self.prompt_workers)
        return work_s / workers

    def work_within(self, wait_s: float) -> float:
        """Prompt work that may be ahead of a request that begins in `wait_s`; negative where it
        can't, with nothing ahead."""
        if not self.backlogs:
            return wait_s * max(1, self.prompt_workers) - self.backlog_s
        first_s, count = self.backlogs[0]
        if wait_s < first_s:
            return (wait_s - first_s) * count
        return sum(max(0.0, wait_s - backlog_s) * count for backlog_s, count in self.backlogs)

    def _decode_wait(self, ahead: int) -> float:
        missing = ahead + 1 - self.free_sequences
        if missing <= 0:
            return 0.0
        return missing * self.stay_s / max(1, self.sequences)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be ahead of a request in the queue, so that it is let in."""

    work_s: float = math.inf
    """Prompt work."""
    requests: int | None = None
    """None: any number."""

    def admits(self, ahead_s: float, ahead: int) -> bool:
        """Whether so much may be ahead."""
        return ahead_s <= self.work_s and (self.requests is None or ahead <= self.requests)


def allowance(outlook: Outlook, wait_s: float) -> Allowance:
    """What may be ahead of a request that can wait for `wait_s`: exactly what `start_s` says
    is served by then."""
    requests = None
    if outlook.stay_s > 0:
        places = wait_s * max(1, outlook.sequences) / outlook.stay_s
        if math.isfinite(places):
            requests = math.floor(places + 1e-9) + outlook.free_sequences - 1
    return Allowance(outlook.work_within(wait_s), requests)


def retry_after_s(outlook: Outlook, ahead_s: float, ahead: int, wait_s: float) -> float:
    """Seconds after which so much of the queue has been served that a request is let in again
    that can wait for `wait_s`, if nobody comes before it."""
    return max(MIN_RETRY_S, outlook.start_s(ahead_s, ahead) - wait_s)


def default_ttft_s(target_s: float, idle_s: float) -> float:
    """The target of a request that gives none: that of its class, or twice what it takes on an
    idle worker (`idle_s`) where that is longer."""
    return max(target_s, 2 * idle_s)
