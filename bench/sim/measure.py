"""What a simulation is judged by."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.sim.life import Life

PERCENTS = (50, 90, 99)
_PER_DECADE = 100


class Gaps:
    """Times between tokens: a histogram with a hundred bins to the decade.

    Counts only while `open`.
    """

    def __init__(self) -> None:
        self.open = True
        self._counts: dict[int, int] = {}

    def add(self, seconds: float, count: int) -> None:
        """Adds so many gaps of one length."""
        if self.open and count > 0:
            slot = math.floor(math.log10(max(seconds, 1e-6)) * _PER_DECADE)
            self._counts[slot] = self._counts.get(slot, 0) + count

    def percentile(self, percent: float) -> float:
        """The middle of the bin that holds it; 0 where there are no gaps."""
        left = sum(self._counts.values()) * percent / 100
        for slot in sorted(self._counts):
            left -= self._counts[slot]
            if left <= 0:
                return float(10 ** ((slot + 0.5) / _PER_DECADE))
        return 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """One simulation. Times in seconds, rates in requests a second, shares of one.

    Counted are requests that arrived after the warm-up. TTFT percentiles are of those that were
    not refused; one without a first token at the end counts as infinite.
    """

    policy: str
    load: float
    """Share of the capacity that is asked for."""
    offered: float
    goodput: float
    """Requests a second that held both targets."""
    held: float
    """Share of all that held both."""
    ttft_held: float
    ttft_s: tuple[float, ...]
    itl_s: tuple[float, ...]
    prompt_utilization: float
    """Of the workers that compute prompts."""
    decode_utilization: float
    refused: float
    """Share of all."""
    unfinished: float
    cached: float
    """Share of prompt tokens that was cached where the prompt was computed."""
    local: float
    """Share that was computed beside a decode batch by choice."""
    preempted: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def summary(
    policy: str,
    load: float,
    lives: Sequence[Life],
    window_s: float,
    gaps: Gaps,
    utilization: tuple[float, float],
) -> Result:
    """The result over the lives that are counted, which arrived within `window_s`."""
    count = max(1, len(lives))
    served = [life for life in lives if not life.refused]
    begun = [life for life in served if life.first_s is not None]
    ttft = sorted(
        math.inf if life.first_s is None else life.first_s - life.arrived_s for life in served
    )
    good = sum(life.holds_ttft() and life.holds_itl() for life in lives)
    return Result(
        policy=policy,
        load=load,
        offered=len(lives) / window_s,
        goodput=good / window_s,
        held=good / count,
        ttft_held=sum(life.holds_ttft() for life in lives) / count,
        ttft_s=tuple(_percentile(ttft, percent) for percent in PERCENTS),
        itl_s=tuple(gaps.percentile(percent) for percent in PERCENTS),
        prompt_utilization=utilization[0],
        decode_utilization=utilization[1],
        refused=(len(lives) - len(served)) / count,
        unfinished=sum(life.ended_s is None for life in served) / count,
        cached=sum(life.cached_tokens for life in begun)
        / max(1, sum(life.prompt_tokens for life in begun)),
        local=sum(life.local for life in begun) / count,
        preempted=sum(life.preempted for life in lives),
    )


def _percentile(values: Sequence[float], percent: float) -> float:
    if not values:
        return 0.0
    return values[min(len(values) - 1, math.floor(len(values) * percent / 100))]
