"""Shares a budget of GPUs between the pools."""

from collections.abc import Mapping
from dataclasses import dataclass

from baton.policy.fleet import Role
from services.planner.config import PlannerConfig
from services.planner.decision import Cause

BETTER = 1.1
"""By how much the pool that lacks most must be better off, so that a worker moves."""

Counts = Mapping[Role, int]


@dataclass(frozen=True, slots=True)
class Wish:
    """How many workers a role should have, were there no budget."""

    current: int
    floor: int
    """Fewer can't hold what is in use, or are not allowed."""
    need: int
    """At least the floor."""
    hold: int
    """What it is to have for now: the need, or more so that it does not swing."""
    cause: Cause
    why: str
    note: str = ""
    """What the bounds and the past have kept from it."""


def share(wishes: Mapping[Role, Wish], config: PlannerConfig) -> Counts:
    """Workers for each pool: what it is to have, where the budget has so many. Otherwise floors
    go before needs and needs before what is only held, each next GPU to the pool that has the
    least part of it. A pool never shrinks below its floor, even where the budget is exceeded."""
    holds = {role: wish.hold for role, wish in wishes.items()}
    if config.fits(holds):
        return holds
    counts = {role: min(wish.current, wish.floor) for role, wish in wishes.items()}
    _fill(counts, {role: wish.floor for role, wish in wishes.items()}, config)
    _fill(counts, {role: wish.need for role, wish in wishes.items()}, config)
    _fill(counts, holds, config)
    current = {role: wish.current for role, wish in wishes.items()}
    moves = any(counts[role] < current[role] for role in counts)
    allowed = config.fits(current) and all(
        wishes[role].floor <= current[role] <= config.most(role) for role in counts
    )
    if moves and allowed and _worst(counts, wishes) < BETTER * _worst(current, wishes):
        return current
    return counts


def _fill(counts: dict[Role, int], wants: Counts, config: PlannerConfig) -> None:
    while True:
        short = [
            role
            for role in counts
            if counts[role] < wants[role] and config.fits({**counts, role: counts[role] + 1})
        ]
        if not short:
            return
        counts[min(short, key=lambda one: (counts[one] / wants[one], one.value))] += 1


def _worst(counts: Counts, wishes: Mapping[Role, Wish]) -> float:
    """The part that the pool has that lacks most."""
    return min(min(1.0, counts[role] / max(1, wishes[role].need)) for role in counts)
