"""Publishes KV blobs to the transfer service and fetches them from it.

Knows bytes, names and leases; no tensors, blocks or requests. All methods belong to one event
loop. A service that is away, full or slow is never an error after `start`: publishing and
fetching then return fewer names, within their deadline, and the caller computes instead. One
that is silent costs about a second once; from then on all returns at once, until it answers.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from baton import errors
from baton.naming import BlobName, Incarnation, LeaseId, WorkerId
from services.common import rpc
from services.common.background import Background
from services.common.security import PLAIN, Security
from services.common.transfer.attachment import Attachment
from services.common.transfer.blobs import IncomingBlob, OutgoingBlob, TransferStats
from services.common.transfer.breaker import QUICK_S, SILENT_ERRORS
from services.common.transfer.calls import TransferCalls
from services.common.transfer.copying import CopyThreads
from services.common.transfer.fetcher import Fetcher
from services.common.transfer.guard import Guard
from services.common.transfer.mapping import ReaderMaps
from services.common.transfer.publisher import Publisher

__all__ = ["IncomingBlob", "OutgoingBlob", "TransferClient", "TransferStats"]

log = logging.getLogger(__name__)

_STALE_CHECK_PERIOD_S = 1.0
_POLL_S = 0.1
_AWAY_S = 1.0
"""A service that is not reached for that long is away."""


class TransferClient:
    """One worker incarnation's connection to the transfer service of its host."""

    def __init__(
        self,
        address: str,
        worker_id: WorkerId,
        incarnation: Incarnation,
        segment_bytes: int,
        *,
        lease_ttl_s: float = 6.0,
        call_deadline_s: float = 2.0,
        copy_threads: int = 1,
        copy_cores: frozenset[int] | None = None,
        security: Security = PLAIN,
    ) -> None:
        """Needs a running loop.

        `lease_ttl_s`: how long a lease lives after each use unless someone renews it.
        `call_deadline_s`: of each single call to the service, within the caller's deadline.
        `copy_cores`: where the copy threads may run; None: where the process may.
        """
        self._address = address
        self._call_deadline_s = call_deadline_s
        self._lease_ttl_s = lease_ttl_s
        self._stats = TransferStats()
        self._channel = rpc.channel(address, security)
        self._guard = Guard(TransferCalls(self._channel, incarnation).probe, self._stats)
        self._calls = TransferCalls(self._channel, incarnation, self._guard.scope)
        self._background = Background(fault_level=logging.DEBUG)
        self._copies = CopyThreads(copy_threads, copy_cores)
        self._maps = ReaderMaps()
        self._attachment = Attachment(
            self._calls, worker_id, segment_bytes, self._stats, self._guard.heard
        )
        self._publisher = Publisher(
            self._calls,
            self._guard,
            self._attachment,
            self._copies,
            self._background,
            self._stats,
            segment_bytes,
            lease_ttl_s,
            call_deadline_s,
            asyncio.Lock(),
        )
        self._fetcher = Fetcher(
            self._calls, self._maps, self._copies, self._stats, lease_ttl_s, call_deadline_s
        )
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self, first_attach_s: float = 5.0) -> None:
        """Attaches, and re-attaches for ever in the background.

        Returns once attached, or after `first_attach_s` with attaching still going on. Raises
        Exhausted where the host's shared memory is too small (the message says what to change)
        and other BatonErrors where the service refuses for good; the client is closed then.
        """
        self._sweeper = asyncio.create_task(self._drop_stale_maps())
        try:
            await self._attachment.start(first_attach_s)
        except BaseException:
            await self.close()
            raise

    @property
    def attached(self) -> bool:
        """Whether there is a segment to publish into now."""
        return self._attachment.segment is not None

    @property
    def stats(self) -> TransferStats:
        """A snapshot of the counters."""
        return replace(self._stats)

    async def lookup(self, names: Sequence[BlobName]) -> frozenset[BlobName]:
        """Those of `names` that are held now, without leasing them. Empty when unreachable."""
        try:
            return await self._calls.lookup(names, min(QUICK_S, self._call_deadline_s))
        except errors.BatonError:
            return frozenset()

    async def publish(
        self, blobs: Sequence[OutgoingBlob], lease_id: LeaseId, deadline_s: float
    ) -> frozenset[BlobName]:
        """Makes blobs readable for others, in order, under the lease.

        Returns the names that are held now, ours or someone's before us. What is held already
        is not copied. Returns fewer when there is no room, the service is away or `deadline_s`
        (from now) is over. When cancelled, returns only after running copies ended; places
        reserved and not committed are given back.
        """
        return await self._publisher.publish(blobs, lease_id, _after(deadline_s))

    async def fetch(
        self,
        blobs: Sequence[IncomingBlob],
        lease_id: LeaseId,
        deadline_s: float,
        source_address: str = "",
    ) -> frozenset[BlobName]:
        """Copies held blobs to where they are wanted and checks them.

        What this host's service does not hold it reads from the transfer service at
        `source_address` (host:port), if that is another one.

        Returns the names whose bytes are complete and right. A blob that fails its checksum is
        reported to the service and not returned. A name may be wanted once. When cancelled,
        returns only after running copies ended.
        """
        source = "" if source_address == self._address else source_address
        return await self._fetcher.fetch(blobs, lease_id, _after(deadline_s), source)

    async def release_lease(self, lease_id: LeaseId) -> None:
        """Ends a lease; its blobs become cache. Best effort: a lost one expires by itself.

        Where the service is silent it returns, and tries on in the background.
        """
        call = partial(self._calls.release_lease, lease_id, self._call_deadline_s)
        try:
            await call()
        except SILENT_ERRORS:
            self._background.spawn(self._guard.persist(call, self._lease_ttl_s))
        except errors.BatonError as error:
            log.debug("a lease was not released: %s", error)

    async def leased_blobs(self) -> int | None:
        """Blobs of our segment that are under a lease, anyone's; None when unreachable."""
        try:
            return await self._calls.leased_blobs(min(QUICK_S, self._call_deadline_s))
        except errors.BatonError:
            return None

    async def wait_unleased(self, timeout_s: float) -> bool:
        """Waits until no blob of our segment is under a lease; False where time is over before.

        Also returns True where the service stays away: nobody reads from us through it then.
        """
        loop = asyncio.get_running_loop()
        heard_at, deadline = loop.time(), _after(timeout_s)
        while True:
            leased = await self.leased_blobs()
            if leased is not None:
                heard_at = loop.time()
            if leased == 0 or loop.time() > heard_at + _AWAY_S:
                return True
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(min(_POLL_S, deadline - loop.time()))

    async def close(self) -> None:
        """Ends calls, unmaps everything. Idempotent; the client can't be started again.

        Callers end their publishing and fetching before.
        """
        if self._closed:
            return
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        self._guard.hurry()
        await self._background.close(self._call_deadline_s)
        await self._guard.close()
        await self._attachment.close()
        await asyncio.to_thread(self._copies.close)
        self._maps.close()
        await self._channel.close()

    async def _drop_stale_maps(self) -> None:
        while True:
            await asyncio.sleep(_STALE_CHECK_PERIOD_S)
            self._maps.drop_stale()


def _after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds
