"""What requests hold of the fleet (claims, leases, workers' patience), and giving it back.

Knows no tokens and makes no calls to workers.
"""

import logging
from collections.abc import Awaitable
from typing import Protocol

from baton.errors import BatonError, Unavailable
from baton.naming import RequestId, WorkerId
from baton.policy.fleet import Worker
from services.common.background import Background
from services.router.calls import HandedOff
from services.router.choice import Choice
from services.router.fleet import FleetView
from services.router.leases import Lease, LeaseKeeper
from services.router.life import Life
from services.router.register import Counters
from services.router.retry import Retries, given_up, is_retryable

log = logging.getLogger(__name__)


class Claims(Protocol):
    """What is needed of `services.router.dispatch.Dispatcher`."""

    async def release(self, request_id: RequestId, worker_id: WorkerId | None = None) -> None: ...

    def spend_retry(self) -> Awaitable[bool]: ...


class Holdings:
    """Takes and gives back for one request at a time; holds nothing itself."""

    def __init__(
        self,
        claims: Claims,
        fleet: FleetView,
        leases: LeaseKeeper,
        retries: Retries,
        counters: Counters,
        background: Background,
    ) -> None:
        self._claims = claims
        self._fleet = fleet
        self._leases = leases
        self._retries = retries
        self._counters = counters
        self._background = background

    def new_lease(self, life: Life, worker: Worker) -> Lease:
        """A lease for what `worker` is going to publish."""
        lease = self._leases.new(worker.transfer_address)
        life.leases.add(lease)
        return lease

    def hold_lease(self, lease: Lease) -> None:
        """Renews a lease (again) until nobody needs it."""
        self._leases.hold(lease)

    def let_lease_go(self, lease: Lease) -> None:
        """Nothing was published under it, or nobody will read that."""
        self._leases.release(lease)

    def let_leases_go(self, life: Life) -> None:
        """Ends the leases of which everyone has fetched what they hold."""
        for lease in life.leases - life.needed_leases:
            self._leases.release(lease)

    def let_worker_go(self, choice: Choice, worker: Worker) -> None:
        """The worker has done its part."""
        self._fleet.report_success(worker.worker_id, worker.incarnation)
        release = self._claims.release(choice.fleet_id, worker.worker_id)
        self._background.spawn(release, f"release {worker.worker_id}")

    def let_choice_go(self, life: Life, choice: Choice) -> None:
        """The choice has ended. Returns at once, so that it works in a cancelled task too."""
        if choice.given_back:
            return
        choice.given_back, choice.needs_kv = True, False
        self.let_leases_go(life)
        release = self._claims.release(choice.fleet_id)
        self._background.spawn(release, f"release {choice.fleet_id}")

    def let_all_go(self, life: Life) -> None:
        """The request has ended. Returns at once."""
        for choice in life.choices:
            self.let_choice_go(life, choice)

    async def move(self, life: Life, choice: Choice, worker: Worker, told: HandedOff) -> None:
        """The choice leaves `worker`, to go on elsewhere with its KV: no failure, no retry."""
        life.moved(choice, worker, told)
        self._leases.hold(told.handoff.lease)
        self.let_leases_go(life)
        self._counters.migrated += 1
        why = "drains" if told.draining else "has no room"
        log.info("%s moves on: %s %s", choice.fleet_id, worker.worker_id, why)
        async with life.deadline.bounding("while it moved to another worker"):
            await self._claims.release(choice.fleet_id)

    async def prepare_retry(
        self, life: Life, choice: Choice, worker: Worker, error: BatonError, attempts_left: int
    ) -> None:
        """Makes ready for another attempt; raises where there must not be one.

        The first token is what counts: before it, retries come out of the fleet's budget.
        """
        life.trace.retried(worker, error)
        if isinstance(error, Unavailable):
            self._fleet.report_failure(worker.worker_id, worker.incarnation)
        if not is_retryable(error) or attempts_left <= 0:
            raise given_up(error)
        async with life.deadline.bounding("after a worker failed"):
            if not choice.emitted and not await self._claims.spend_retry():
                raise given_up(error)
            log.info("%s: attempt %d: %s", choice.fleet_id, choice.attempt, error)
            self._counters.retried_legs += 1
            choice.attempt += 1
            life.failed.add((worker.worker_id, worker.incarnation))
            await self._claims.release(choice.fleet_id)
            await self._retries.pause(choice.attempt - choice.migrations)
