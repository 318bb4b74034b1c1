"""Places requests on workers, and keeps what they hold there.

While Redis is away the router goes to the workers that it knows, counting what it gave them;
workers refuse what they can't take. Knows no prompts and makes no calls to workers.
"""

import time
from dataclasses import dataclass

from baton.errors import Exhausted
from baton.naming import RequestId, WorkerId
from baton.policy.fleet import Demand, Role, Worker
from baton.policy.score import DEFAULT_TTFT_TARGET_S, queue_score
from services.common.fleet.store import FleetStore, RouterId
from services.router.claims import Claims
from services.router.fleet import Clock, FleetView
from services.router.search import Desk, Excluded, Search, Ways, Wish
from services.router.turns import RETRY_AFTER_S, Turns

_DECODE_ONLY: Ways = ((Role.DECODE,),)
_BOTH_OR_DECODE: Ways = ((Role.PREFILL, Role.DECODE), (Role.DECODE,))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes. No prefill worker: its prompt goes to the decode worker."""

    prefill: Worker | None
    decode: Worker


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """How this router queues its requests."""

    aggregated: bool = False
    """Send every prompt straight to a decode worker."""
    max_waiting: int = 1024
    """Requests that may wait for a turn, over all routers."""
    ttft_target_s: float = DEFAULT_TTFT_TARGET_S
    patience_s: float = 10.0
    """How long a request waits for a worker to appear."""
    lease_s: float = 10.0
    """How long a claim outlives its router."""


class Dispatcher:
    """Places the requests of one router. Not thread-safe; one event loop."""

    def __init__(
        self,
        store: FleetStore,
        view: FleetView,
        router_id: RouterId,
        config: DispatchConfig | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._config = config or DispatchConfig()
        self._turns = Turns(store, router_id, clock)
        self._claims = Claims(store, view, self._config.lease_s)
        self._desk = Desk(store, view, self._turns, self._claims, clock, self._config.patience_s)

    async def start(self) -> None:
        """Listens for turns and renews claims in the background."""
        await self._turns.start()
        await self._claims.start()

    async def close(self) -> None:
        """Stops both, and gives back what is held still. Close the view and the store after."""
        await self._turns.close()
        await self._claims.close()

    @property
    def waiting(self) -> int:
        """Requests of this router that wait for a worker."""
        return len(self._turns)

    @property
    def holding(self) -> int:
        """Claims of this router's requests, whether their workers took them yet or not."""
        return len(self._claims)

    def check_integrity(self) -> None:
        """Raises InternalError when the books do not agree."""
        self._turns.check_integrity()
        self._claims.check_integrity()

    async def turn(
        self,
        demand: Demand,
        *,
        waited_s: float = 0.0,
        priority: int = 0,
        exclude: Excluded = frozenset(),
    ) -> Placement:
        """Waits for the request's turn, and claims a prefill worker together with room on a
        decode worker of the same KV layout; where there is no such pair, a decode worker alone.

        Excluded workers are not asked for a second, unless they restarted. Raises Exhausted
        when too many wait or no worker is large enough, and Unavailable when no worker appears
        for `patience_s`. It may be cancelled at any time: nothing stays queued or claimed.
        """
        limit = self._config.max_waiting
        if len(self._turns) >= limit:
            raise Exhausted(
                "too many requests wait", reason="QUEUE_FULL", retry_after=RETRY_AFTER_S
            )
        ways = _DECODE_ONLY if self._config.aggregated else _BOTH_OR_DECODE
        score_s = queue_score(waited_s, self._config.ttft_target_s, priority)
        wish = Wish(demand, ways, score_s, limit, exclude)
        *before, decode = await Search(self._desk, wish).run()
        return Placement(before[0] if before else None, decode)

    async def claim_decode(
        self,
        demand: Demand,
        exclude: Excluded = frozenset(),
        fingerprint: str | None = None,
        near: WorkerId | None = None,
    ) -> Worker:
        """Claims another decode worker alone: as `turn`, but ahead of what has not begun.

        `fingerprint` is the KV layout of the handoff. A worker of another layout comes only
        where no live one has it; it can't use the handoff and has to be sent the tokens.
        `near` goes before other workers if it has room now: its cache has the prompt.
        """
        score_s = queue_score(0.0, self._config.ttft_target_s, started=True)
        wish = Wish(demand, _DECODE_ONLY, score_s, None, exclude, fingerprint, near)
        (worker,) = await Search(self._desk, wish).run()
        return worker

    async def release(self, request_id: RequestId, worker_id: WorkerId | None = None) -> None:
        """Gives back what the request holds (on `worker_id`). Idempotent; raises nothing but its
        caller's cancel, and does its work all the same then."""
        await self._claims.release(request_id, worker_id)

    def held(self, request_id: RequestId) -> frozenset[WorkerId]:
        """Workers on which the request holds room."""
        return self._claims.held(request_id)
