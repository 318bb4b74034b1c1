"""One request's life as parts that follow each other and add up to its whole time.

The router's clock gives the boundaries; what a worker told of its own leg is fitted in between.
Values in seconds; knows no protobuf.
"""

from collections.abc import Iterator
from dataclasses import dataclass

FIRST_TOKEN_PARTS = ("queue", "wait", "compute", "publish", "calls", "prefill")
"""Those that add up to the time to first token, in their order."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a request."""

    total_s: float
    queue_s: float
    prefill_s: float
    """From the turn to the first token; to the end where none came."""
    first_token: bool
    handoff_s: float | None
    """From the first token to the second; None where no handoff lay between them."""
    waiting_s: float = 0.0
    computing_s: float = 0.0
    publishing_s: float = 0.0
    """As the prefill worker measured them."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part, from `start_s` after the request's arrival on."""

    name: str
    start_s: float
    seconds: float


def parts_of(measured: Measured) -> tuple[Part, ...]:
    """The parts in their order, those that took no time left out. They add up to `total_s`."""
    parts, at = [], 0.0
    for name, seconds in _lengths(measured):
        if seconds > 0:
            parts.append(Part(name, at, seconds))
            at += seconds
    return tuple(parts)


def _lengths(measured: Measured) -> Iterator[tuple[str, float]]:
    left = max(0.0, measured.total_s)
    queue = min(measured.queue_s, left)
    left -= queue
    yield "queue", queue
    prefill = min(measured.prefill_s, left)
    left -= prefill
    yield from _prefill(measured, prefill)
    if not measured.first_token:
        yield "unfinished", left
        return
    handoff = min(measured.handoff_s or 0.0, left)
    yield "handoff", handoff
    yield "decode", left - handoff


def _prefill(measured: Measured, whole: float) -> Iterator[tuple[str, float]]:
    """The leg's parts; what its worker's do not explain is the way there and back."""
    told = (
        ("wait", measured.waiting_s),
        ("compute", measured.computing_s),
        ("publish", measured.publishing_s),
    )
    sum_s = sum(seconds for _, seconds in told)
    if sum_s == 0:
        yield ("prefill" if measured.first_token else "unfinished"), whole
        return
    # Another attempt's clock may have run longer than the leg that is shown.
    scale = min(1.0, whole / sum_s)
    yield from ((name, seconds * scale) for name, seconds in told)
    yield "calls", max(0.0, whole - sum_s)
