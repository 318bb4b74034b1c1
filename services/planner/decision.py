"""What a planner decides, and why."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from baton.naming import WorkerId
from baton.policy.fleet import Role


class Cause(StrEnum):
    """What a change comes of."""

    FORECAST = "forecast"
    """The load that is foreseen needs so many."""
    QUEUE = "queue"
    """Prompts wait longer than their target allows."""
    TTFT_MISSED = "ttft_missed"
    """First tokens come late."""
    ITL_MISSED = "itl_missed"
    """Streams are slower than their target."""
    KV_FULL = "kv_full"
    """The KV in use leaves hardly any room."""
    SURPLUS = "surplus"
    """Fewer have been enough for a while."""
    BOUNDS = "bounds"
    """There are fewer or more than allowed, or than the budget has GPUs for."""


@dataclass(frozen=True, slots=True)
class Change:
    """Another number of workers for one role."""

    role: Role
    current: int
    wanted: int
    cause: Cause
    why: str
    """One sentence, such as "decode from 2 to 3: ..." with the numbers behind it, for logs and
    events."""
    victims: tuple[WorkerId, ...] = ()
    """Where there are to be fewer: the workers to stop, the one with the least to move first."""

    @property
    def direction(self) -> Literal["up", "down"]:
        """Which way it goes."""
        return "up" if self.wanted > self.current else "down"


@dataclass(frozen=True, slots=True)
class Sizing:
    """What one role needs, from the load alone."""

    role: Role
    needed: int
    """Workers."""
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done now. No changes: all stays as it is."""

    at_s: float
    changes: tuple[Change, ...]
    sizings: tuple[Sizing, ...]
    """What the load needs, with and without changes."""
    held_back: tuple[str, ...] = ()
    """What would have been done but for a cool-down, a bound or the budget; a sentence each."""
