"""The fleet's shared state: workers, the queue, turns and claims, kept in Redis.

Atomic and without policy: scores and plans come from `baton.policy`, every method is one
script, safe to run twice, and time is Redis' own. Knows no prompts, tokens or KV.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NewType

from redis import exceptions

from baton.errors import InternalError
from baton.naming import Incarnation, WorkerId
from baton.policy.fleet import Claim, Usage, Worker
from baton.policy.placement import Plan
from baton.v1 import worker_pb2
from services.common.fleet.record import from_record, to_record
from services.common.fleet.scripts import Scripts

log = logging.getLogger(__name__)

RouterId = NewType("RouterId", str)
TicketId = NewType("TicketId", str)
Hold = tuple[WorkerId, Claim]
"""A claim on a worker."""

ROUTER_LIFE_S = 3.0
"""A router that is silent for longer loses its places in the queue."""
_BLOCK_S = 1.0
_BLOCK_MS = round(1000 * _BLOCK_S)
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the fleet's queue, and the room that it waits for."""

    ticket_id: TicketId
    router_id: RouterId
    score_s: float
    """Seconds from now at which it is due (`baton.policy.score`); the first to be due is next."""
    prefill_tokens: int | None
    """KV tokens needed on a prefill worker. None: it needs none."""
    decode_tokens: int | None
    """KV tokens needed on a decode worker. None: it needs none."""


class Place(Enum):
    """Where a ticket is."""

    WAITING = "waiting"
    TURN = "turn"
    FULL = "full"
    """Not in the queue, which is too long."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Redis' answer to a ticket."""

    place: Place
    registration: int
    """Of the router in Redis. When it is another than before, what was queued then is gone."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The fleet at one moment."""

    workers: tuple[Worker, ...]
    """Those whose heartbeat is not too old, with `pending` filled."""
    waiting: int
    turns: int
    claims: int
    """Claims that workers have not reported yet."""
    now: float
    """Redis' time, in seconds."""
    settled: bool
    """False shortly after Redis came back: that a worker is missing means nothing yet."""


class FleetStore:
    """One process's access to its fleet's state.

    Every method answers, or raises Unavailable, within `timeout_s`. After a failure only
    `heartbeat` and `snapshot` try Redis, until one succeeds; everything else fails at once.
    Not thread-safe; belongs to one event loop.
    """

    def __init__(
        self, url: str, fleet: str, *, timeout_s: float = 1.0, connect_s: float = 0.5
    ) -> None:
        self._scripts = Scripts(url, fleet, timeout_s, connect_s)

    @property
    def available(self) -> bool:
        """Whether Redis answered last time."""
        return self._scripts.available

    async def close(self) -> None:
        """Closes the connections."""
        await self._scripts.close()

    async def heartbeat(self, worker: Worker, period_s: float) -> bool:
        """Registers the worker or renews it, and drops the claims that it took.

        Three periods without a heartbeat take it out of rotation. Returns whether it was new.
        """
        new = await self._scripts.run(
            "heartbeat",
            worker.worker_id,
            worker.incarnation,
            worker.role.value,
            _micros(period_s),
            int(worker.draining),
            worker.capacity.sequences,
            worker.capacity.kv_tokens,
            worker.running.sequences,
            worker.running.kv_tokens,
            to_record(worker).SerializeToString(),
            *(_key((worker.worker_id, claim)) for claim in worker.taken),
            probe=True,
        )
        return bool(new)

    async def deregister(self, worker_id: WorkerId, incarnation: Incarnation) -> None:
        """Removes the worker, unless another incarnation has taken its place."""
        await self._scripts.run("deregister", worker_id, incarnation)

    async def enqueue(self, ticket: Ticket, limit: int | None = None) -> Enqueued:
        """Queues the ticket, and gives it its turn at once where there is room.

        A ticket that is queued already keeps its score; one at its turn gives the turn back
        first. With `limit`, a new ticket is not let in when as many wait.
        """
        place, registration = await self._scripts.run(
            "enqueue",
            ticket.ticket_id,
            ticket.router_id,
            _micros(ROUTER_LIFE_S),
            _micros(ticket.score_s),
            _or_none(ticket.prefill_tokens),
            _or_none(ticket.decode_tokens),
            _or_none(limit),
        )
        return Enqueued(Place(place.decode()), registration)

    async def leave(self, tickets: Sequence[TicketId]) -> None:
        """Takes tickets out of the queue, or gives their turns back."""
        if tickets:
            await self._scripts.run("leave", *tickets)

    async def take_turns(self, router_id: RouterId) -> int:
        """Gives turns while there is room, and keeps this router's tickets alive.

        Every other change that makes room does so too; this is for what nobody told. Returns
        the router's registration, as `enqueue` does.
        """
        return int(await self._scripts.run("take_turns", router_id, _micros(ROUTER_LIFE_S)))

    async def turns(self, router_id: RouterId) -> AsyncIterator[TicketId]:
        """Tickets of this router as their turns come, for ever; on a connection of its own.

        Goes on when Redis was away, and may then repeat turns that are long over.
        """
        reader = self._scripts.reader()
        stream, last = self._scripts.stream(router_id), b"0-0"
        try:
            while True:
                try:
                    async with asyncio.timeout(2 * _BLOCK_S):
                        answer: Any = await reader.xread({stream: last}, block=_BLOCK_MS)
                except (exceptions.RedisError, OSError, TimeoutError):
                    await asyncio.sleep(_RETRY_S)
                    last = b"0-0"
                    continue
                for _, entries in answer:
                    for entry_id, fields in entries:
                        last = entry_id
                        yield TicketId(fields[b"ticket"].decode())
        finally:
            await reader.aclose()

    async def claim(
        self,
        claim: Claim,
        plans: Sequence[Plan],
        lease_s: float,
        ticket_id: TicketId | None = None,
    ) -> tuple[Worker, ...] | None:
        """Claims room on one worker of each choice of the first plan that fits, or on none.

        Compare-and-set: a worker counts only with the incarnation it has in the plan, and with
        capacity - running - pending claims enough. What `claim` holds already is kept, and its
        lease renewed. With a ticket it works only at the ticket's turn, and uses it up.
        Returns the workers in the order of the plan's choices; None: no room, or not its turn.
        """
        picked = await self._scripts.run(
            "claim",
            f"{claim.request_id}/{claim.attempt}",
            _micros(lease_s),
            ticket_id or "",
            json.dumps([_plan(plan) for plan in plans]),
        )
        if not picked:
            return None
        known = {
            worker.worker_id: worker
            for plan in plans
            for choice in plan
            for worker in choice.workers
        }
        return tuple(known[WorkerId(worker_id.decode())] for worker_id in picked)

    async def renew(self, holds: Sequence[Hold], lease_s: float) -> None:
        """Prolongs claims; those that are gone (taken up, expired, released) stay gone."""
        if holds:
            await self._scripts.run("renew", _micros(lease_s), *(_key(hold) for hold in holds))

    async def release(self, holds: Sequence[Hold]) -> None:
        """Gives claims back; those that are gone already do not matter."""
        if holds:
            await self._scripts.run("release", *(_key(hold) for hold in holds))

    async def snapshot(self) -> FleetSnapshot:
        """The fleet now."""
        now, settled, waiting, turns, claims, *rows = await self._scripts.run(
            "snapshot", probe=True
        )
        workers = []
        for data, sequences, tokens in rows:
            record = worker_pb2.WorkerRecord.FromString(data)
            try:
                workers.append(from_record(record, Usage(sequences, tokens)))
            except ValueError as error:
                log.warning("ignored: %s", error)
        return FleetSnapshot(tuple(workers), waiting, turns, claims, now / 1e6, bool(settled))

    async def check_integrity(self) -> None:
        """Raises InternalError where Redis' sums are not what they are sums of. Looks at all."""
        problems = await self._scripts.run("audit")
        if problems:
            raise InternalError("fleet: " + "; ".join(problem.decode() for problem in problems))


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _key(hold: Hold) -> str:
    worker_id, claim = hold
    return f"{worker_id}/{claim.request_id}/{claim.attempt}"


def _plan(plan: Plan) -> list[dict[str, object]]:
    return [
        {
            "sequences": choice.cost.sequences,
            "tokens": choice.cost.kv_tokens,
            "workers": [[worker.worker_id, worker.incarnation] for worker in choice.workers],
        }
        for choice in plan
    ]
