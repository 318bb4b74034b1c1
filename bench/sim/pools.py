"""Pools of simulated workers that grow and shrink, as an orchestrator makes them.

A worker costs its GPU from the moment it is asked for until it has left. It serves after its
cold start. One that is to go takes nothing new, finishes its prompts, hands its sequences over
and stays until others have their KV. Where there are to be fewer, those that do not serve yet
go first, then those that were named, then the one that has the least.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.naming import WorkerId
from baton.policy.fleet import Role
from bench.sim.fleet import Fleet
from bench.sim.records import worker_id
from bench.sim.routers import Routers
from bench.sim.worker import SimWorker
from services.planner.observation import Pool

LINGER_S = 1.0
"""A worker that drains looks this often whether it may go."""
COLD_SPREAD = 0.1
"""By how much cold starts differ, either way."""


@dataclass(slots=True, eq=False)
class Member:
    """A worker from the moment it is asked for."""

    role: Role
    asked_s: float
    worker: SimWorker | None = None
    """None while it starts."""
    leaving: bool = False
    gone_s: float | None = None


class Pools:
    """All workers of a fleet with routers, those that start and those that have left too."""

    def __init__(self, fleet: Fleet, routers: Routers, cold_start_s: float) -> None:
        self._fleet = fleet
        self._routers = routers
        self._events = fleet.events
        self._cold_start_s = cold_start_s
        self._random = random.Random(fleet.config.seed)
        self._members = [Member(worker.role, 0.0, worker) for worker in fleet.workers]

    def replicas(self, role: Role) -> int:
        """Workers that are asked for."""
        return len(self._wanted(role))

    def serving(self, role: Role) -> list[SimWorker]:
        """Workers that take requests."""
        return [one.worker for one in self._wanted(role) if one.worker is not None]

    def counts(self) -> Mapping[Role, Pool]:
        """As an orchestrator tells it."""
        return {role: Pool(self.replicas(role), len(self.serving(role))) for role in Role}

    def worker_seconds(self) -> float:
        """Time that all workers together were there until now, from when they were asked for."""
        now = self._events.now
        return sum(
            (now if one.gone_s is None else one.gone_s) - one.asked_s for one in self._members
        )

    def resize(self, role: Role, wanted: int, victims: Sequence[WorkerId] = ()) -> None:
        """Asks for so many workers."""
        for _ in range(wanted - self.replicas(role)):
            self._start(role)
        surplus = self.replicas(role) - wanted
        if surplus > 0:
            for member in self._order_to_go(role, victims)[:surplus]:
                self._stop(member)

    def _wanted(self, role: Role) -> list[Member]:
        return [one for one in self._members if one.role is role and not one.leaving]

    def _order_to_go(self, role: Role, victims: Sequence[WorkerId]) -> list[Member]:
        named = {name: place for place, name in enumerate(victims)}

        def rank(member: Member) -> tuple[int, float, float]:
            worker = member.worker
            if worker is None:
                return 0, -member.asked_s, 0.0
            place = named.get(worker_id(worker.number))
            if place is not None:
                return 1, place, 0.0
            return 2, worker.kv_tokens, worker.number

        return sorted(self._wanted(role), key=rank)

    def _start(self, role: Role) -> None:
        member = Member(role, self._events.now)
        self._members.append(member)
        spread = self._random.uniform(1 - COLD_SPREAD, 1 + COLD_SPREAD)
        self._events.after(self._cold_start_s * spread, lambda: self._ready(member))

    def _ready(self, member: Member) -> None:
        if member.gone_s is None:
            member.worker = self._fleet.join(member.role)
            self._routers.join(member.worker)

    def _stop(self, member: Member) -> None:
        member.leaving = True
        worker = member.worker
        if worker is None:
            member.gone_s = self._events.now
            return
        self._routers.drain(worker)
        worker.drain()
        self._events.after(LINGER_S, lambda: self._look(member, worker))

    def _look(self, member: Member, worker: SimWorker) -> None:
        """Lets the worker go if nobody needs it any more."""
        if worker.running or worker.waiting or worker.unread:
            self._events.after(LINGER_S, lambda: self._look(member, worker))
            return
        member.gone_s = self._events.now
        self._fleet.leave(worker)
        self._routers.leave(worker)
