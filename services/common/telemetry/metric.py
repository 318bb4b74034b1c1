"""Declarations of metrics, and the values that they are told with. Values; knows no format.

A service's `metrics.py` declares its metrics as constants; documentation, dashboards and the
scrape all go by those.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from services.common.telemetry.tally import Tallies, Tally

_UNITS = ("seconds", "bytes", "tokens", "blocks", "blobs", "ratio", "flops", "nats")


class Kind(Enum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """What is measured. A counter's name ends in `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    stands: bool = False
    """A gauge that is not about work: it need not be zero in an idle process."""

    def __post_init__(self) -> None:
        if (self.kind is Kind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: counters, and they alone, end in _total")

    @property
    def unit(self) -> str:
        """The unit that its name ends with; empty: it counts things."""
        name, rate = self.name.removesuffix("_total"), "_per_second"
        last = name.removesuffix(rate).rpartition("_")[2]
        if last not in _UNITS:
            return ""
        return f"{last}/second" if name.endswith(rate) else last

    def at(self, value: "float | Tally", *labels: str) -> "Reading":
        """A value of it. Raises ValueError where labels lack or are too many."""
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {labels}")
        return Reading(self, labels, value)

    def each(self, tallies: Tallies) -> "list[Reading]":
        """The value for each set of labels."""
        return [self.at(tally, *labels) for labels, tally in tallies]


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of a metric at the moment of a scrape."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Tally


Read = Callable[[], Awaitable[Iterable[Reading]]]
"""Reads values on the event loop."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where values come from."""

    name: str
    read: Read
    metrics: Sequence[Metric]
    """All that it may tell."""


def counter(name: str, description: str, *labels: str) -> Metric:
    """What only grows, from the process's start on."""
    return Metric(name, Kind.COUNTER, description, labels)


def gauge(name: str, description: str, *labels: str, stands: bool = False) -> Metric:
    """What is now. `stands`: also while there is no work."""
    return Metric(name, Kind.GAUGE, description, labels, stands)


def histogram(name: str, description: str, *labels: str) -> Metric:
    """How often which sizes were seen."""
    return Metric(name, Kind.HISTOGRAM, description, labels)
