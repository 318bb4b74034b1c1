"""Fetching: lease blobs, copy each as it becomes readable, check, report what is broken."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from baton import errors
from baton.naming import BlobName, LeaseId
from services.common.transfer.blobs import IncomingBlob, TransferStats
from services.common.transfer.calls import TransferCalls
from services.common.transfer.copying import CopyThreads, ReadJob, ReadResult
from services.common.transfer.mapping import ReaderMaps
from services.common.transfer.place import SegmentId, Stored

log = logging.getLogger(__name__)

Found = tuple[IncomingBlob, Stored]


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Copies blobs out of all segments of the host. Belongs to one event loop."""

    calls: TransferCalls
    maps: ReaderMaps
    copies: CopyThreads
    stats: TransferStats
    lease_ttl_s: float
    call_deadline_s: float

    async def fetch(
        self,
        blobs: Sequence[IncomingBlob],
        lease_id: LeaseId,
        deadline: float,
        source_address: str = "",
    ) -> frozenset[BlobName]:
        """See TransferClient.fetch; `deadline` is in loop time."""
        wanted = {blob.name: blob for blob in blobs}
        filled: set[BlobName] = set()
        if not wanted:
            return frozenset()
        acquiring = self.calls.acquire(
            tuple(wanted), lease_id, self.lease_ttl_s, _seconds_until(deadline), source_address
        )
        try:
            async with aclosing(acquiring):
                async for batch in acquiring:
                    found = [(wanted[name], stored) for name, stored in batch.blobs]
                    filled |= await self._copy(found, deadline)
        except errors.BatonError as error:
            log.debug("fetching ended early: %s", error)
        return frozenset(filled)

    async def _copy(self, found: Sequence[Found], deadline: float) -> set[BlobName]:
        by_segment: dict[tuple[SegmentId, str], list[Found]] = {}
        for blob, stored in found:
            key = (stored.place.segment_id, stored.segment_path)
            by_segment.setdefault(key, []).append((blob, stored))
        filled: set[BlobName] = set()
        for (segment_id, path), group in by_segment.items():
            results = await self._copy_from(segment_id, path, group, deadline)
            for (blob, stored), result in zip(group, results, strict=False):
                if result is ReadResult.OK:
                    filled.add(blob.name)
                    self.stats.fetched_blobs += 1
                    self.stats.fetched_bytes += stored.place.size
                else:
                    await self._report(blob.name, stored, result, deadline)
        return filled

    async def _copy_from(
        self, segment_id: SegmentId, path: str, group: Sequence[Found], deadline: float
    ) -> list[ReadResult]:
        """Results from the first on; fewer where time ran out."""
        try:
            mapping = self.maps.pin(segment_id, path)
        except FileNotFoundError:
            return [ReadResult.STALE] * len(group)
        except OSError as error:
            log.warning("cannot read segment %s: %s", path, error)
            return []
        try:
            jobs = [ReadJob(stored.place, stored.checksum, blob.into) for blob, stored in group]
            return await self.copies.read(mapping.bytes, jobs, deadline)
        finally:
            mapping.unpin()

    async def _report(
        self, name: BlobName, stored: Stored, result: ReadResult, deadline: float
    ) -> None:
        # Also what looks stale: where the service still holds the name at this very place,
        # its header is broken, and nobody could publish the name anew.
        if result is ReadResult.CORRUPT:
            self.stats.corrupt_blobs += 1
            log.warning("blob %s failed its checksum in %s", name.hex(), stored.place)
        else:
            self.stats.stale_blobs += 1
        patience_s = min(self.call_deadline_s, _seconds_until(deadline))
        await self.calls.discard(name, stored.place, patience_s)


def _seconds_until(deadline: float) -> float:
    return max(0.001, deadline - asyncio.get_running_loop().time())
