"""Publishing: reserve places, copy into them, commit.

Room is waited for in short slices, one publication after the other: so a cancelled one holds
the service's queue only for a moment, and none starves. Whatever ends a publication early, its
places are given back by calls that outlive it.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from baton import errors
from baton.naming import BlobName, LeaseId
from services.common.background import Background
from services.common.transfer.attachment import Attachment, Segment
from services.common.transfer.blobs import OutgoingBlob, TransferStats
from services.common.transfer.breaker import QUICK_S
from services.common.transfer.calls import TransferCalls, Written
from services.common.transfer.copying import CopyThreads, WriteJob
from services.common.transfer.guard import Guard
from services.common.transfer.place import Place, extent_bytes

log = logging.getLogger(__name__)

BATCH_BLOBS = 64
"""Blobs that are reserved, copied and committed together."""
_BATCH_FRACTION = 8
"""A batch takes at most this part of the segment, if it has more than one blob."""
_WAIT_SLICE_S = 0.2
_COMMIT_RESERVE_S = 0.1
"""Of a publication's time, what waiting for room leaves for copying and committing."""
_ABANDON_S = 10.0
"""How long giving places back waits for a silent service; then we attach anew."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """Puts blobs into our segment. Belongs to one event loop."""

    calls: TransferCalls
    guard: Guard
    attachment: Attachment
    copies: CopyThreads
    background: Background
    stats: TransferStats
    segment_bytes: int
    lease_ttl_s: float
    call_deadline_s: float
    turn: asyncio.Lock
    """Held by the publication that waits for room: first come, first served."""

    async def publish(
        self, blobs: Sequence[OutgoingBlob], lease_id: LeaseId, deadline: float
    ) -> frozenset[BlobName]:
        """See TransferClient.publish; `deadline` is in loop time."""
        held: set[BlobName] = set()
        if not blobs:
            return frozenset()
        try:
            held |= await self._lease_held([blob.name for blob in blobs], lease_id, deadline)
            missing = {blob.name: blob for blob in blobs if blob.name not in held}
            for batch in self._batches(list(missing.values())):
                committed = await self._publish_batch(batch, lease_id, deadline)
                held |= committed
                if len(committed) < len(batch):
                    break
        except errors.BatonError as error:
            log.debug("publishing ended early: %s", error)
        return frozenset(held)

    def _batches(self, blobs: Sequence[OutgoingBlob]) -> Iterator[list[OutgoingBlob]]:
        """Cuts `blobs` so that a batch takes a small part of the segment."""
        batch: list[OutgoingBlob] = []
        room = 0
        for blob in blobs:
            size = extent_bytes(blob.data.nbytes)
            if len(batch) == BATCH_BLOBS or size > room:
                if batch:
                    yield batch
                batch = []
                room = self.segment_bytes // _BATCH_FRACTION
            batch.append(blob)
            room -= size
        if batch:
            yield batch

    async def _lease_held(
        self, names: Sequence[BlobName], lease_id: LeaseId, deadline: float
    ) -> set[BlobName]:
        """Puts those of `names` under the lease that are held already."""
        held = await self.calls.lookup(names, min(QUICK_S, self._time_left(deadline)))
        if not held:
            return set()
        leased: set[BlobName] = set()
        acquiring = self.calls.acquire(
            tuple(held), lease_id, self.lease_ttl_s, self._time_left(deadline)
        )
        async with aclosing(acquiring):
            async for answer in acquiring:
                leased.update(name for name, _ in answer.blobs)
        self.stats.shared_blobs += len(leased)
        return leased

    async def _publish_batch(
        self, blobs: Sequence[OutgoingBlob], lease_id: LeaseId, deadline: float
    ) -> set[BlobName]:
        segment = self.attachment.segment
        sizes = [blob.data.nbytes for blob in blobs]
        if segment is None or extent_bytes(max(sizes)) > segment.mapping.size:
            return set()
        to_abandon = places = await self._reserve(sizes, deadline)
        try:
            written = await self._write(segment, blobs, places, deadline)
            if not written:
                return set()
            # From here on the commit itself gives back what it fails to bind.
            to_abandon = places[len(written) :]
            committing = self.background.spawn(self._commit(written, lease_id))
            await asyncio.wait([committing], timeout=self._time_left(deadline))
            return committing.result() if committing.done() else set()
        finally:
            self._abandon(to_abandon)

    async def _reserve(self, sizes: Sequence[int], deadline: float) -> list[Place]:
        """As many places as there is room for in time, from the first on."""
        wait_until = deadline - min(_COMMIT_RESERVE_S, self._time_left(deadline) / 2)
        try:
            async with asyncio.timeout_at(wait_until):
                await self.turn.acquire()
        except TimeoutError:
            return []
        places: list[Place] = []
        try:
            last = False
            while len(places) < len(sizes) and not last:
                wait_s = wait_until - asyncio.get_running_loop().time()
                last = wait_s <= _WAIT_SLICE_S
                wait_s = min(wait_s, _WAIT_SLICE_S)
                places += await self._reserve_slice(sizes[len(places) :], wait_s, deadline)
        except BaseException:
            self._abandon(places)
            raise
        finally:
            self.turn.release()
        return places

    async def _reserve_slice(
        self, sizes: Sequence[int], wait_s: float, deadline: float
    ) -> tuple[Place, ...]:
        # The call outlives its caller: cancelling it could lose places that it was just given.
        reserving = self.background.spawn(self._reserve_call(sizes, wait_s))
        try:
            await asyncio.wait([reserving], timeout=self._time_left(deadline))
            if reserving.done():
                return reserving.result()
        except asyncio.CancelledError:
            self.background.spawn(self._give_back(reserving))
            raise
        self.background.spawn(self._give_back(reserving))
        return ()

    async def _reserve_call(self, sizes: Sequence[int], wait_s: float) -> tuple[Place, ...]:
        try:
            return await self.calls.reserve(sizes, wait_s, wait_s + self.call_deadline_s)
        except errors.DeadlineExceeded:
            self.attachment.reset()
            raise

    async def _give_back(self, reserving: asyncio.Task[tuple[Place, ...]]) -> None:
        self._abandon(await reserving)

    async def _write(
        self,
        segment: Segment,
        blobs: Sequence[OutgoingBlob],
        places: Sequence[Place],
        deadline: float,
    ) -> list[Written]:
        """Copies blobs into places as far as time allows; none once we are attached anew."""
        if self.attachment.segment is not segment:
            return []
        jobs = [WriteJob(place, blob.data) for blob, place in zip(blobs, places, strict=False)]
        segment.mapping.pin()
        try:
            checksums = await self.copies.write(segment.mapping.bytes, jobs, deadline)
        finally:
            segment.mapping.unpin()
        return [
            Written(blob.name, place, checksum, blob.recompute_seconds)
            for blob, place, checksum in zip(blobs, places, checksums, strict=False)
        ]

    async def _commit(self, written: Sequence[Written], lease_id: LeaseId) -> set[BlobName]:
        try:
            bound = await self.calls.commit(
                written, lease_id, self.lease_ttl_s, self.call_deadline_s
            )
        except errors.BatonError:
            self._abandon([blob.place for blob in written])
            raise
        for blob, ours in zip(written, bound, strict=True):
            if ours:
                self.stats.published_blobs += 1
                self.stats.published_bytes += blob.place.size
            else:
                self.stats.shared_blobs += 1
        return {blob.name for blob in written}

    def _abandon(self, places: Sequence[Place]) -> None:
        if places:
            self.background.spawn(self._abandon_surely(tuple(places)))

    async def _abandon_surely(self, places: Sequence[Place]) -> None:
        call = partial(self.calls.abandon, places, self.call_deadline_s)
        if not await self.guard.persist(call, _ABANDON_S):
            self.attachment.reset()

    def _time_left(self, deadline: float) -> float:
        """Seconds that a call may take. Raises DeadlineExceeded where there are none."""
        left = min(self.call_deadline_s, deadline - asyncio.get_running_loop().time())
        if left <= 0:
            raise errors.DeadlineExceeded("no time left")
        return left
