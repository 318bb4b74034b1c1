"""Tickets, plans and a listener for tests of the fleet's state in Redis."""

import asyncio
from contextlib import aclosing, suppress

from baton.naming import RequestId
from baton.policy.fleet import Claim, Role, Task, Usage, Worker
from baton.policy.placement import Candidate, Choice, Plan
from baton.policy.score import Order
from services.common.fleet.store import FleetStore, Need, RouterId, Ticket, TicketId

HERE, THERE = RouterId("here"), RouterId("there")
COST = Usage(1, 10)
ANY_LIMIT = 1_000_000


def ticket(
    name: str,
    score: float | Order = 1.0,
    prefill: int | Need | None = 10,
    decode: int | Need | None = 20,
    router: RouterId = HERE,
) -> Ticket:
    """A ticket, by default due in a second and without prompt work."""
    return Ticket(
        TicketId(name),
        router,
        score if isinstance(score, Order) else Order(score),
        Need(prefill) if isinstance(prefill, int) else prefill,
        Need(decode) if isinstance(decode, int) else decode,
    )


def prompt(
    name: str, prompt_s: float, score: float | Order = 1.0, router: RouterId = HERE
) -> Ticket:
    """A ticket with prompt work for a prefill worker."""
    return ticket(name, score, Need(10, prompt_s), 20, router)


def candidate(
    worker: Worker, prompt_s: float = 0.0, limit: int = ANY_LIMIT, saved_s: float = 0.0
) -> Candidate:
    return Candidate(worker, prompt_s, limit, saved_s)


def plan(*workers: Worker | Candidate, cost: Usage = COST) -> Plan:
    """One choice for each role among the workers."""
    candidates = [one if isinstance(one, Candidate) else candidate(one) for one in workers]
    tasks = {Role.PREFILL: Task.PREFILL, Role.DECODE: Task.DECODE}
    roles = dict.fromkeys(one.worker.role for one in candidates)
    return tuple(
        Choice(tasks[role], role, cost, tuple(one for one in candidates if one.worker.role is role))
        for role in roles
    )


def claim(name: str = "r", attempt: int = 0) -> Claim:
    return Claim(RequestId(name), attempt)


class Turns:
    """What comes over a router's stream."""

    def __init__(self, store: FleetStore, router: RouterId = HERE) -> None:
        self._store, self._router = store, router
        self.came: list[TicketId] = []

    async def _listen(self) -> None:
        async with aclosing(self._store.turns(self._router)) as turns:
            async for ticket_id in turns:
                self.came.append(ticket_id)

    async def __aenter__(self) -> "Turns":
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def until(self, *expected: str, timeout_s: float = 5.0) -> None:
        """Waits until exactly these tickets had their turns, in this order."""
        async with asyncio.timeout(timeout_s):
            while self.came != list(expected):
                await asyncio.sleep(0.005)
