"""Counts of observed values by size, with the last trace seen in each bucket.

Knows no exposition format. A tally has one writing thread; readers elsewhere take a `snapshot`.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SECONDS_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.004, 0.0075, 0.015, 0.03, 0.05, 0.1, 0.2),
    *(0.35, 0.5, 1.0, 2.0, 4.0, 7.5, 15.0, 30.0, 60.0, 120.0),
)
"""Of all durations: from a fast step to a slow batch request; usual targets are bounds."""
TOKENS_BUCKETS = tuple(float(2**power) for power in range(18))
SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
"""Of batches."""
BYTES_BUCKETS = tuple(float(4**power) for power in range(5, 18))
"""From 1 KiB to 16 GiB."""
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
"""Of what was measured to what was predicted."""


@dataclass(frozen=True, slots=True)
class Example:
    """One observed value and the trace that it belongs to."""

    trace_id: str
    """In hex."""
    value: float
    at_s: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A tally at one moment."""

    bounds: Sequence[float]
    counts: Sequence[int]
    """Of each bucket by itself; one more than there are bounds."""
    total: float
    """Sum of the values."""
    examples: Sequence[Example | None]


class Tally:
    """How many values fell into each bucket, and their sum."""

    __slots__ = ("_bounds", "_counts", "_examples", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: of the buckets, upwards; a value at a bound belongs to the bucket below."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._examples: list[Example | None] = [None] * (len(bounds) + 1)
        self._total = 0.0

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def total(self) -> float:
        """Sum of the values."""
        return self._total

    def observe(self, value: float, trace_id: bytes = b"", count: int = 1) -> None:
        """Counts a value, `count` times; the trace is the bucket's example from now on."""
        index = bisect_left(self._bounds, value)
        self._counts[index] += count
        self._total += value * count
        if trace_id:
            self._examples[index] = Example(trace_id.hex(), value, time.time())

    def add(self, other: "Tally") -> None:
        """Counts what `other`, of the same bounds, counted."""
        for index, count in enumerate(other._counts):
            self._counts[index] += count
        self._total += other._total

    def snapshot(self) -> Snapshot:
        """As it is now; from any thread."""
        return Snapshot(self._bounds, tuple(self._counts), self._total, tuple(self._examples))


class Tallies:
    """A tally for each set of label values."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._by_labels: dict[tuple[str, ...], Tally] = {}

    def __getitem__(self, labels: tuple[str, ...]) -> Tally:
        tally = self._by_labels.get(labels)
        if tally is None:
            tally = self._by_labels[labels] = Tally(self._bounds)
        return tally

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], Tally]]:
        return iter(tuple(self._by_labels.items()))
