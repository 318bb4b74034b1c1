"""Who is to do what for a request: by a prefill worker and a handoff, or by one worker alone.

Chooses among the ways of `baton.policy.placement` by the router's mode, by what the request is
and by who is there. Knows no queue and no claims.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from baton.naming import WorkerId
from baton.policy.fleet import Demand, Role
from baton.policy.placement import (
    AT_DECODE,
    AT_PREFILL,
    GO_ON,
    GO_ON_AT_PREFILL,
    SPLIT,
    Plan,
    Usable,
    Way,
    has_room,
    plans,
    prefers_local,
)
from services.router.fleet import FleetView
from services.router.means import Means

Disaggregation = Literal["auto", "always", "never"]
"""auto: a prompt is computed beside a decode batch where that is no slower and holds the batch's
latency; always: only where no prefill worker can take it; never: it always is."""
_Possible = Callable[..., tuple[Plan, ...]]


class Kind(Enum):
    """What a request is to the planner."""

    NEW = "new"
    WHOLE = "whole"
    """Its prompt must not go through a prefill worker."""
    GO_ON = "go on"
    """It has a handoff, or a worker computes what there is."""


@dataclass(frozen=True, slots=True)
class Options:
    """Plans that would do, best first; none: nobody who is there could do it."""

    plans: tuple[Plan, ...]
    local: bool = False
    """One worker does all since that is cheaper."""
    degraded: bool = False
    """A role is gone (or just failed), and workers of the other one stand in."""


class Planner:
    """Plans over the fleet as a router sees it. Changes nothing."""

    def __init__(self, view: FleetView, means: Means, mode: Disaggregation) -> None:
        self._view = view
        self._means = means
        self._mode = mode

    def options(
        self,
        demand: Demand,
        kind: Kind,
        usable: Usable,
        layout: str | None = None,
        near: WorkerId | None = None,
    ) -> Options:
        """What would do for `demand`, of workers that pass `usable`. `layout` is the KV layout
        to prefer, `near` the worker."""

        def possible(*ways: Way) -> tuple[Plan, ...]:
            return plans(demand, ways, self._view.roster, usable, layout, near)

        no_decode = not self._view.roster.has(Role.DECODE)
        if kind is Kind.GO_ON:
            return Options(possible(GO_ON, *((GO_ON_AT_PREFILL,) if no_decode else ())))
        if kind is Kind.NEW and self._mode != "never" and (split := possible(SPLIT)):
            return self._split_or_local(demand, split, possible)
        together = possible(AT_DECODE, *((AT_PREFILL,) if no_decode else ()))
        stands_in = no_decode or (kind is Kind.NEW and self._mode != "never")
        return Options(together, degraded=bool(together) and stands_in)

    def _split_or_local(
        self, demand: Demand, split: tuple[Plan, ...], possible: _Possible
    ) -> Options:
        if self._mode == "auto":
            local = possible(AT_DECODE)
            if local and prefers_local(demand, split[0], local[0], self._handed_over_s(split[0])):
                return Options(local, local=True)
        return Options(split)

    def _handed_over_s(self, split: Plan) -> float:
        """What the way over a prefill worker takes beyond that worker: the queue before it, which
        doesn't wait for one that has room, and the handoff after it."""
        if has_room(split[0], split[0].best):
            return self._means.handoff_s
        snapshot = self._view.snapshot
        queued_s = snapshot.queued_s if snapshot and self._view.redis_available else 0.0
        outlook = self._view.roster.outlook(split[0].role, split[-1].role, 0.0)
        return queued_s / max(1, outlook.prompt_workers) + self._means.handoff_s
