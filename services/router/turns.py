"""This router's places in the fleet's queue, and the turns that come to it.

Knows tickets, not requests: what a turn is used for is the dispatcher's matter.
"""

import asyncio
import contextlib
import heapq
from dataclasses import dataclass, field, replace

from baton.errors import BatonError, Exhausted, InternalError
from baton.policy.admission import Allowance
from baton.policy.score import Order
from services.common.fleet.store import (
    Enqueued,
    FleetStore,
    Need,
    Place,
    RouterId,
    Ticket,
    TicketId,
)
from services.router.fleet import Clock
from services.router.settled import settled

POLL_S = 0.1
RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Room:
    """What is needed on a worker of each role; None: no worker of that role."""

    prefill: Need | None
    decode: Need | None

    def is_like(self, other: "Room") -> bool:
        """Whether both ask for the same room. Predicted times differ a little every time."""
        return _tokens(self) == _tokens(other)


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a ticket comes into the queue, the first time."""

    limit: int | None = None
    """It is taken only while fewer wait. None: always."""
    earn: float = 0.0
    """Fraction of a retry that it adds to the fleet's budget."""


@dataclass(slots=True)
class _Waiter:
    order: Order
    since: float
    """When `order` held, on the router's clock."""
    terms: Terms
    room: Room | None = None
    """What it may be queued for in Redis. None: it is not queued."""
    queued: bool = False
    """Whether Redis has it, as far as is known here."""
    registration: int | None = None
    """Of this router, when the ticket was queued."""
    turn: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def due(self) -> float:
        """On the router's clock."""
        return self.since + self.order.due_s

    def order_at(self, now: float) -> Order:
        """The order as it is now."""
        passed, late_s = now - self.since, self.order.late_s
        return replace(
            self.order,
            due_s=self.order.due_s - passed,
            late_s=None if late_s is None else late_s - passed,
        )


class Turns:
    """Tickets of one router. Not thread-safe; one event loop."""

    def __init__(
        self, store: FleetStore, router_id: RouterId, clock: Clock, poll_s: float = POLL_S
    ) -> None:
        self._store = store
        self._router_id = router_id
        self._clock = clock
        self._poll_s = poll_s
        self._waiters: dict[TicketId, _Waiter] = {}
        self._by_due: list[tuple[float, TicketId]] = []
        """Heap over `_waiters`; entries of those who left are dropped when they come up."""
        self._registration: int | None = None
        self._someone = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listens for turns in the background."""
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._poll())]

    async def close(self) -> None:
        """Stops listening."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, ticket_id: TicketId, order: Order, terms: Terms | None = None) -> None:
        """Begins a ticket, whose order is as of now."""
        waiter = _Waiter(order, self._clock(), terms or Terms())
        self._waiters[ticket_id] = waiter
        heapq.heappush(self._by_due, (waiter.due, ticket_id))
        self._someone.set()

    def remove(self, ticket_id: TicketId) -> bool:
        """Ends a ticket here. Returns whether Redis may have it still."""
        waiter = self._waiters.pop(ticket_id)
        if not self._waiters:
            self._someone.clear()
        if (first := self._first()) is not None:
            self._waiters[first].news.set()
        return waiter.room is not None

    def is_first(self, ticket_id: TicketId) -> bool:
        """Whether no other ticket of this router is due earlier."""
        return self._first() == ticket_id

    def is_queued(self, ticket_id: TicketId) -> bool:
        """Whether Redis has the ticket, as far as is known here."""
        return self._waiters[ticket_id].queued

    async def join(
        self, ticket_id: TicketId, room: Room, allowance: Allowance | None = None
    ) -> Enqueued | None:
        """Queues the ticket for `room`. One that is queued for the like stays, and None is the
        answer; one at its turn gives the turn back.

        With `allowance`, a ticket that was never queued is not taken when more is ahead of it:
        its place is REFUSED then. Raises Exhausted when too many wait, and Unavailable.
        """
        waiter = self._waiters[ticket_id]
        stays = waiter.queued and waiter.room is not None and waiter.room.is_like(room)
        if stays and not waiter.turn:
            return None
        return await settled(self._enqueue(ticket_id, waiter, room, allowance))

    async def turn(self, ticket_id: TicketId, timeout_s: float) -> bool:
        """Waits for the ticket's turn, at most `timeout_s` or until there is other news of it.
        Returns whether it is its turn."""
        if not self._waiters[ticket_id].turn:
            await self.news(ticket_id, timeout_s)
        return self._waiters[ticket_id].turn

    async def news(self, ticket_id: TicketId, timeout_s: float) -> None:
        """Waits at most `timeout_s` for: its turn, Redis lost it or went away, it is the first."""
        waiter = self._waiters[ticket_id]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await waiter.news.wait()
        waiter.news.clear()

    async def leave(self, ticket_id: TicketId) -> None:
        """Takes the ticket out of the queue; it is still known here."""
        waiter = self._waiters[ticket_id]
        if waiter.room is not None:
            await settled(self._store.leave([ticket_id]))
            waiter.room, waiter.queued, waiter.turn = None, False, False

    def check_integrity(self) -> None:
        """Raises InternalError when the heap has lost a ticket."""
        heaped = {ticket_id for _, ticket_id in self._by_due}
        if not self._waiters.keys() <= heaped or self._someone.is_set() != bool(self._waiters):
            raise InternalError("turns: a waiting ticket is not in order")

    async def _enqueue(
        self, ticket_id: TicketId, waiter: _Waiter, room: Room, allowance: Allowance | None
    ) -> Enqueued:
        new = waiter.registration is None
        waiter.room, waiter.queued, waiter.turn = room, False, False
        ticket = Ticket(
            ticket_id,
            self._router_id,
            waiter.order_at(self._clock()),
            room.prefill,
            room.decode,
        )
        terms = waiter.terms if new else Terms()
        answer = await self._store.enqueue(
            ticket, terms.limit, allowance if new else None, terms.earn
        )
        self._lose_others(answer.registration, ticket_id)
        if answer.place in (Place.FULL, Place.REFUSED):
            waiter.room = None
        else:
            waiter.room, waiter.queued = room, True
            waiter.registration = answer.registration
        if answer.place is Place.FULL:
            raise Exhausted(
                "too many requests wait", reason="QUEUE_FULL", retry_after=RETRY_AFTER_S
            )
        if answer.place is Place.TURN:
            waiter.turn = True
            waiter.news.set()
        return answer

    def _first(self) -> TicketId | None:
        while self._by_due and self._by_due[0][1] not in self._waiters:
            heapq.heappop(self._by_due)
        return self._by_due[0][1] if self._by_due else None

    def _lose_others(self, registration: int, but: TicketId | None = None) -> None:
        """Redis has lost the tickets that were queued under another registration."""
        if registration == self._registration:
            return
        self._registration = registration
        for ticket_id, waiter in self._waiters.items():
            if waiter.registration != registration and ticket_id != but:
                waiter.room, waiter.queued, waiter.turn = None, False, False
                waiter.news.set()

    async def _listen(self) -> None:
        async for ticket_id in self._store.turns(self._router_id):
            waiter = self._waiters.get(ticket_id)
            if waiter is None:
                with contextlib.suppress(BatonError):
                    await self._store.leave([ticket_id])
            else:
                waiter.turn = True
                waiter.news.set()

    async def _poll(self) -> None:
        away = False
        while True:
            await self._someone.wait()
            await asyncio.sleep(self._poll_s)
            try:
                self._lose_others(await self._store.take_turns(self._router_id))
            except BatonError:
                if not away:
                    self._wake_all()
                away = True
                continue
            away = False

    def _wake_all(self) -> None:
        for waiter in self._waiters.values():
            waiter.news.set()


def _tokens(room: Room) -> tuple[int | None, int | None]:
    return (
        room.prefill.kv_tokens if room.prefill else None,
        room.decode.kv_tokens if room.decode else None,
    )
