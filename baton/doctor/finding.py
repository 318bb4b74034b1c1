"""What a diagnosis consists of, and words that all of it uses."""

from dataclasses import dataclass
from enum import IntEnum

MANY = 0.1
"""Requests beyond a target that are a problem, as a part of all: targets are meant for nine in ten
at least, and a few late ones come with any burst."""


class Severity(IntEnum):
    """How much it matters; the larger, the more."""

    INFO = 0
    """Good to know."""
    WARNING = 1
    """Not as it should be; nobody has suffered yet as far as was seen."""
    PROBLEM = 2
    """Requests suffer from it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    code: str
    """For programs: what suffers, a dot, and the cause, such as `first_token.queue`."""
    severity: Severity
    title: str
    """One sentence."""
    evidence: tuple[str, ...] = ()
    """The numbers that show it."""
    advice: tuple[str, ...] = ()
    """What to change, the best first."""
    weight: float = 0.0
    """Among findings of one severity: how many requests suffer, from 0 to 1."""


def percent(part: float) -> str:
    """A part of one in words."""
    return f"{100 * part:.0f}%"


def duration(seconds: float) -> str:
    """Seconds as people write them."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.2f} ms"


def rate(value: float, unit: str) -> str:
    """A number a second with a prefix: `3.2 GB/s`."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}/s"
    return f"{value:.3g} {unit}/s"
