"""The last minutes, kept in memory: requests that ended, and samples of what only runs by.

Bounded in both. Times are seconds since 1970, passed in; knows no clock and no protobuf.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TypeVar

from services.gateway.page.parts import FIRST_TOKEN_PARTS
from services.gateway.page.rows import OUTCOMES, Ended, Row

MAX_REQUESTS = 2_000
MAX_SAMPLES = 400
WINDOW_S = 300.0
"""What charts show."""
BUCKET_S = 5.0
NOW_S = 60.0
"""What counts as now: large numbers are over so long."""
_GAP_S = 15.0
"""Samples further apart say nothing of the time between them: nobody watched."""
_QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))

T = TypeVar("T")

Tokens = Mapping[tuple[str, str], tuple[int, int]]
"""Prompt and output tokens computed since its start, by worker and incarnation."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the fleet."""

    at_s: float
    waiting: int
    running: int
    tokens: Tokens = field(default_factory=dict)


class History:
    """What is remembered. Belongs to one event loop."""

    def __init__(self) -> None:
        self._requests: deque[Ended] = deque(maxlen=MAX_REQUESTS)
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._last_number = 0

    @property
    def last_number(self) -> int:
        """Requests are numbered from 1, as they come; 0: none came."""
        return self._last_number

    def add_requests(self, requests: Sequence[Ended]) -> None:
        """Remembers requests that ended, in that order."""
        self._requests.extend(requests)
        self._last_number += len(requests)

    def add_sample(self, sample: Sample) -> None:
        """Remembers a look at the fleet; forgets those that no chart shows any more."""
        self._samples.append(sample)
        while self._samples[0].at_s < sample.at_s - WINDOW_S - _GAP_S:
            self._samples.popleft()

    def newest(self, limit: int, after: int = 0) -> list[Ended]:
        """The newest requests of numbers above `after`, oldest first."""
        count = min(limit, max(0, self._last_number - after), len(self._requests))
        return list(islice(reversed(self._requests), count))[::-1]

    def summary(self, now_s: float) -> Row:
        """Large numbers: latencies, rates and goodput of the last minute."""
        recent = [one for one in self._requests if now_s - NOW_S < one.ended_s]
        good = sum(one.good for one in recent)
        ours = sum(one.outcome != "cancelled" for one in recent)
        return {
            "window_s": NOW_S,
            "ended": len(recent),
            "good": good,
            "good_share": good / ours if ours else None,
            "good_per_s": good / NOW_S,
            "outcomes": _outcomes(recent),
            "ttft_parts": _mean_parts(recent),
            "ttft": _latency(
                [(one.ttft_s, one.ttft_target_s) for one in recent],
                [one.ttft_held for one in recent],
            ),
            "itl": _latency(
                [(one.itl_s, one.itl_target_s) for one in recent],
                [one.itl_held for one in recent],
            ),
        }

    def series(self, now_s: float) -> Row:
        """Columns for charts, one element for each bucket of time; None: nothing is known."""
        end = math.floor(now_s / BUCKET_S)
        count = round(WINDOW_S / BUCKET_S)
        requests = _by_bucket(((one.ended_s, one) for one in self._requests), end, count)
        samples = _by_bucket(((one.at_s, one) for one in self._samples), end, count)
        tokens = _token_rates(self._samples, end, count)
        return {
            "bucket_s": BUCKET_S,
            "end_s": end * BUCKET_S,
            "ttft": _columns([_known(one.ttft_s for one in each) for each in requests]),
            "itl": _columns([_known(one.itl_s for one in each) for each in requests]),
            "outcomes": {
                name: [sum(one.outcome == name for one in each) / BUCKET_S for each in requests]
                for name in OUTCOMES
            },
            "waiting": [max((one.waiting for one in each), default=None) for each in samples],
            "running": [max((one.running for one in each), default=None) for each in samples],
            "prompt_tokens": [None if rate is None else rate[0] for rate in tokens],
            "output_tokens": [None if rate is None else rate[1] for rate in tokens],
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values don't exceed, between the two nearest by line."""
    known = sorted(values)
    place = share * (len(known) - 1)
    low = math.floor(place)
    high = min(low + 1, len(known) - 1)
    return known[low] + (known[high] - known[low]) * (place - low)


def _percentiles(values: Sequence[float]) -> Row:
    return {name: percentile(values, share) if values else None for name, share in _QUANTILES}


def _latency(
    measured: Sequence[tuple[float | None, float | None]], held: Sequence[bool | None]
) -> Row:
    """Percentiles, how many held their target, and the target that most had."""
    judged = [one for one in held if one is not None]
    targets = Counter(target for _, target in measured if target is not None)
    return {
        **_percentiles(_known(value for value, _ in measured)),
        "target_s": targets.most_common(1)[0][0] if targets else None,
        "held_share": sum(judged) / len(judged) if judged else None,
        "count": len(_known(value for value, _ in measured)),
    }


def _mean_parts(requests: Sequence[Ended]) -> Row:
    """Where the time to first token goes, in seconds for each part, by the mean request."""
    sums: Row = {}
    answered = [one for one in requests if one.ttft_s is not None]
    for one in answered:
        for part in one.row["parts"]:
            if part["name"] in FIRST_TOKEN_PARTS:
                sums[part["name"]] = sums.get(part["name"], 0.0) + part["seconds"] / len(answered)
    return {name: sums[name] for name in FIRST_TOKEN_PARTS if name in sums}


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _outcomes(requests: Sequence[Ended]) -> Row:
    counts = Counter(one.outcome for one in requests)
    return {name: counts[name] for name in OUTCOMES}


def _columns(buckets: Sequence[Sequence[float]]) -> Row:
    rows = [_percentiles(bucket) for bucket in buckets]
    return {name: [row[name] for row in rows] for name, _ in _QUANTILES}


def _by_bucket(timed: Iterable[tuple[float, T]], end: int, count: int) -> list[list[T]]:
    """Values by the `count` buckets before `end`, which still fills; the oldest first."""
    buckets: list[list[T]] = [[] for _ in range(count)]
    for at_s, value in timed:
        index = math.floor(at_s / BUCKET_S) - end + count
        if 0 <= index < count:
            buckets[index].append(value)
    return buckets


def _token_rates(
    samples: Iterable[Sample], end: int, count: int
) -> list[tuple[float, float] | None]:
    """Prompt and output tokens a second."""
    pairs = [
        (later.at_s, (later.at_s - one.at_s, _progress(one.tokens, later.tokens)))
        for one, later in pairwise(samples)
        if 0 < later.at_s - one.at_s <= _GAP_S
    ]
    rates: list[tuple[float, float] | None] = []
    for bucket in _by_bucket(pairs, end, count):
        time_s = sum(took_s for took_s, _ in bucket)
        prompt = sum(progress[0] for _, progress in bucket)
        output = sum(progress[1] for _, progress in bucket)
        rates.append((prompt / time_s, output / time_s) if time_s else None)
    return rates


def _progress(before: Tokens, after: Tokens) -> tuple[int, int]:
    """Tokens computed between two looks, by workers that were there at both."""
    both = [(before[key], after[key]) for key in after if key in before]
    return (
        sum(max(0, later[0] - one[0]) for one, later in both),
        sum(max(0, later[1] - one[1]) for one, later in both),
    )
