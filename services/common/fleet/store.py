"""The fleet's shared state: workers, the queue, turns and claims, kept in Redis.

Atomic and without policy: scores and plans come from `baton.policy`, every method is one
script, safe to run twice, and time is Redis' own. Knows no prompts, tokens or KV.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis import exceptions

from baton.errors import InternalError
from baton.naming import Incarnation, WorkerId
from baton.policy.admission import Allowance
from baton.policy.fleet import Claim, Worker
from baton.policy.placement import Candidate, Plan
from services.common.fleet.demand import NAMES, Batch, DemandTotals
from services.common.fleet.record import Records, to_record
from services.common.fleet.scripts import Scripts
from services.common.fleet.tenants import TenantStreams
from services.common.fleet.tickets import (
    Enqueued,
    Need,
    Place,
    RouterId,
    Ticket,
    TicketId,
    micros,
    to_json,
)

__all__ = [
    "ROUTER_LIFE_S",
    "Enqueued",
    "FleetSnapshot",
    "FleetStore",
    "Hold",
    "Need",
    "Place",
    "RouterId",
    "Ticket",
    "TicketId",
]

Hold = tuple[WorkerId, Claim]
"""A claim on a worker."""

ROUTER_LIFE_S = 3.0
"""A router that is silent for longer loses its places in the queue."""
_BATCH_LIFE_S = 3600
"""For so long it is known which batch of demand a source added last."""
_MOST_DEMAND = 1e30
_BLOCK_S = 1.0
_BLOCK_MS = round(1000 * _BLOCK_S)
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The fleet at one moment."""

    workers: tuple[Worker, ...]
    """Those whose heartbeat is not too old, with what is pending filled in."""
    waiting: int
    queued_s: float
    """Prompt work of all tickets that wait."""
    turns: int
    claims: int
    """Claims that workers have not reported yet."""
    now: float
    """Redis' time, in seconds."""
    settled: bool
    """False shortly after Redis came back: that a worker is missing means nothing yet."""
    clocks: Mapping[str, float]
    """Clocks of tenants and minimum shares (`baton.policy.score`) that are ahead of now, each
    with the seconds by which it is."""


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
        self._records = Records()
        self.tenants = TenantStreams(self._scripts)
        """What tenants have of the fleet."""

    @property
    def available(self) -> bool:
        """Whether Redis answered last time."""
        return self._scripts.available

    async def close(self) -> None:
        """Closes the connections."""
        await self._scripts.close()

    async def heartbeat(self, worker: Worker, period_s: float) -> bool:
        """Registers the worker or renews it, and drops the claims that it took: what it tells
        counts in their place.

        Three periods without a heartbeat take it out of rotation. Returns whether it was new.
        """
        new = await self._scripts.run(
            "heartbeat",
            worker.worker_id,
            worker.incarnation,
            worker.role.value,
            micros(period_s),
            int(worker.draining),
            worker.sequence_limit,
            worker.capacity.kv_tokens,
            worker.running.sequences,
            worker.running.kv_tokens,
            micros(worker.load.prompt_backlog_s),
            micros(worker.prompt_lookahead_s),
            to_record(worker).SerializeToString(),
            *(_key((worker.worker_id, claim)) for claim in worker.taken),
            probe=True,
        )
        return bool(new)

    async def deregister(self, worker_id: WorkerId, incarnation: Incarnation) -> None:
        """Removes the worker, unless another incarnation has taken its place."""
        await self._scripts.run("deregister", worker_id, incarnation)

    async def enqueue(
        self,
        ticket: Ticket,
        limit: int | None = None,
        allowance: Allowance | None = None,
        earn: float = 0.0,
    ) -> Enqueued:
        """Queues the ticket, and gives it its turn at once where there is room.

        A ticket that is queued already keeps its score; one at its turn gives the turn back
        first. A new one is not let in when `limit` tickets wait, or when more is ahead of it than
        `allowance` says; when it is let in, its work advances the clocks of its order, and it
        adds the fraction `earn` of a retry to the fleet's budget.
        """
        place, registration, ahead_micros, ahead = await self._scripts.run(
            "enqueue",
            ticket.ticket_id,
            ticket.router_id,
            micros(ROUTER_LIFE_S),
            to_json(ticket, limit, allowance, micros(earn)),
        )
        return Enqueued(Place(place.decode()), registration, ahead_micros / 1e6, ahead)

    async def leave(self, tickets: Sequence[TicketId]) -> None:
        """Takes tickets out of the queue, or gives their turns back."""
        if tickets:
            await self._scripts.run("leave", *tickets)

    async def take_turns(self, router_id: RouterId) -> int:
        """Gives turns while there is room, and keeps this router's tickets alive.

        Every other change that makes room does so too; this is for what nobody told. Returns
        the router's registration, as `enqueue` does.
        """
        return int(await self._scripts.run("take_turns", router_id, micros(ROUTER_LIFE_S)))

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
    ) -> tuple[Candidate, ...] | None:
        """Claims room on one worker of each choice of the first plan that fits, or on none.

        Compare-and-set: a worker counts only with the incarnation it has in the plan, with
        capacity - running - pending claims enough, with at most the candidate's limit of
        sequences, and for prompt work only where it wants prompts, or would with so much less
        as its cache saves. What `claim` holds already is kept, and its lease renewed. With a
        ticket it works only at the ticket's turn, and uses it up. Returns the candidates in the
        order of the plan's choices; None: no room, or not its turn.
        """
        answer = await self._scripts.run(
            "claim",
            f"{claim.request_id}/{claim.attempt}",
            micros(lease_s),
            ticket_id or "",
            json.dumps([_plan(plan) for plan in plans]),
        )
        if not answer:
            return None
        number, *picked = answer
        return tuple(
            next(one for one in choice.candidates if one.worker.worker_id == worker_id.decode())
            for choice, worker_id in zip(plans[number - 1], picked, strict=True)
        )

    async def renew(self, holds: Sequence[Hold], lease_s: float) -> None:
        """Prolongs claims; those that are gone (taken up, expired, released) stay gone."""
        if holds:
            await self._scripts.run("renew", micros(lease_s), *(_key(hold) for hold in holds))

    async def release(self, holds: Sequence[Hold]) -> None:
        """Gives claims back; those that are gone already do not matter."""
        if holds:
            await self._scripts.run("release", *(_key(hold) for hold in holds))

    async def spend_retry(self, reserve: float) -> bool:
        """Takes a retry from the fleet's budget, which begins at `reserve` and is never above it.
        Returns whether there was one."""
        return bool(await self._scripts.run("spend_retry", micros(reserve)))

    async def add_demand(self, totals: DemandTotals, batch: Batch) -> None:
        """Adds to what clients have asked of the fleet.

        After Unavailable it may have been added or not: whoever asks again with the same `batch`
        adds it once.
        """
        changes = [
            (name, value) for name, value in zip(NAMES, totals.values(), strict=True) if value
        ]
        flat = (part for name, value in changes for part in (name, repr(float(value))))
        if changes:
            await self._scripts.run("add_demand", batch.source, batch.number, _BATCH_LIFE_S, *flat)

    async def demand(self) -> DemandTotals:
        """What clients have asked of the fleet so far, as all routers have told it; 0 for what
        is no sum."""
        sums = await self._scripts.run("demand", *NAMES)
        return DemandTotals(*map(_sum, sums))

    async def keep(self, name: str, value: bytes) -> None:
        """Keeps a small value under a name of the caller's, in place of the one before."""
        await self._scripts.run("keep", name, value)

    async def kept(self, name: str) -> bytes | None:
        """The value that was kept last under the name; None: none, or Redis came back empty."""
        value: bytes | None = await self._scripts.run("kept", name)
        return value

    async def snapshot(self) -> FleetSnapshot:
        """The fleet now."""
        answer = await self._scripts.run("snapshot", probe=True)
        now, settled, waiting, queued, turns, claims, clocks, records, pending = answer
        return FleetSnapshot(
            workers=self._records.read(_pairs(records), _pairs(pending)),
            waiting=waiting,
            queued_s=queued / 1e6,
            turns=turns,
            claims=claims,
            now=now / 1e6,
            settled=bool(settled),
            clocks={
                name.decode(): (float(shown) - now) / 1e6 for name, shown in _pairs(clocks).items()
            },
        )

    async def check_integrity(self) -> None:
        """Raises InternalError where Redis' sums are not what they are sums of. Looks at all."""
        problems = await self._scripts.run("audit")
        if problems:
            raise InternalError("fleet: " + "; ".join(problem.decode() for problem in problems))


def _key(hold: Hold) -> str:
    worker_id, claim = hold
    return f"{worker_id}/{claim.request_id}/{claim.attempt}"


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _sum(found: bytes | None) -> float:
    try:
        value = float(found or 0)
    except ValueError:
        return 0.0
    return value if 0 <= value <= _MOST_DEMAND else 0.0


def _plan(plan: Plan) -> list[dict[str, object]]:
    return [
        {
            "sequences": choice.cost.sequences,
            "tokens": choice.cost.kv_tokens,
            "workers": [
                [
                    one.worker.worker_id,
                    one.worker.incarnation,
                    one.limit,
                    micros(one.prompt_s),
                    micros(one.saved_s),
                ]
                for one in choice.candidates
            ],
        }
        for choice in plan
    ]
