"""What a planner sees of a fleet at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from baton.policy.fleet import Role, Worker
from services.common.fleet.demand import DemandTotals


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers of one role, as their orchestrator counts them."""

    replicas: int
    """Workers that are asked for."""
    ready: int
    """Workers that serve; those that start or stop are none."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A fleet at one moment."""

    at_s: float
    """Seconds since 1970: seasons have a phase."""
    workers: tuple[Worker, ...]
    """Those that are registered, draining ones too."""
    waiting: int
    """Requests that wait for a turn."""
    queued_s: float
    """Prompt work of all that wait, in seconds of one worker."""
    totals: DemandTotals
    pools: Mapping[Role, Pool]
    """By role; both are there."""
