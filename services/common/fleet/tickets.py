"""Tickets of the fleet's queue, and what the scripts read and answer of them.

Knows how they are written down for the scripts, not what Redis does with them.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from baton.policy.admission import Allowance
from baton.policy.fleet import Role
from baton.policy.score import DEMOTION_S, Order

RouterId = NewType("RouterId", str)
TicketId = NewType("TicketId", str)


@dataclass(frozen=True, slots=True)
class Need:
    """Room on a worker of one role that a ticket waits for."""

    kv_tokens: int
    prompt_s: float = 0.0
    """Predicted seconds of prompt work; 0: none, and the worker need not want prompts."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the fleet's queue, and the room that it waits for."""

    ticket_id: TicketId
    router_id: RouterId
    order: Order
    """Where it stands when it is new; later it keeps the place that it got."""
    prefill: Need | None
    """None: it needs no prefill worker."""
    decode: Need | None
    """None: it needs no decode worker."""

    @property
    def needs(self) -> Mapping[Role, Need]:
        """What it needs, by role."""
        both = {Role.PREFILL: self.prefill, Role.DECODE: self.decode}
        return {role: need for role, need in both.items() if need is not None}


class Place(Enum):
    """Where a ticket is."""

    WAITING = "waiting"
    TURN = "turn"
    FULL = "full"
    """Not in the queue, which is too long."""
    REFUSED = "refused"
    """Not in the queue: more is ahead of it than it may wait for."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Redis' answer to a ticket."""

    place: Place
    registration: int
    """Of the router in Redis. When it is another than before, what was queued then is gone."""
    ahead_s: float
    """Prompt work of the tickets that waited then and are due earlier, or within half a second of
    it. What is at its turn waits no more."""
    ahead: int
    """How many tickets waited then that are due no later."""


def to_json(
    ticket: Ticket, limit: int | None, allowance: Allowance | None, earn_millionths: int
) -> str:
    """What enqueue.lua reads: times and work in microseconds, what does not apply left out."""
    order = ticket.order
    asked: dict[str, object] = {
        "due": micros(order.due_s),
        "clock": order.clock,
        "clock_rate": order.clock_rate,
        "floor": order.floor,
        "floor_rate": order.floor_rate,
        "demotion": micros(DEMOTION_S),
        "needs": {
            role.value: [need.kv_tokens, micros(need.prompt_s)]
            for role, need in ticket.needs.items()
        },
        "earn": earn_millionths,
    }
    if order.late_s is not None and math.isfinite(order.late_s):
        asked["late"] = micros(order.late_s)
    if limit is not None:
        asked["limit"] = limit
    if allowance is not None and math.isfinite(allowance.work_s):
        asked["allowed_work"] = micros(allowance.work_s)
    if allowance is not None and allowance.requests is not None:
        asked["allowed_tickets"] = allowance.requests
    return json.dumps(asked, allow_nan=False)


def micros(seconds: float) -> int:
    """Whole microseconds."""
    return round(seconds * 1e6)
