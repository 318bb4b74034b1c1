"""The owner's side of reads by NIXL: registers segments, and tells where blobs are in them."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baton import errors
from baton.naming import BlobName, LeaseId
from services.common.transfer.mapping import Mapping
from services.common.transfer.place import SegmentId, Stored, read_generation
from services.transfer.peers.nixl import NixlAgent, NixlFailed
from services.transfer.store import BlobStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offered:
    """A blob that another agent may read now."""

    name: BlobName
    address: int
    stored: Stored


@dataclass(frozen=True, slots=True)
class Description:
    """What a reader needs."""

    metadata: bytes
    agent: str
    blobs: tuple[Offered, ...]
    missing: tuple[BlobName, ...]


@dataclass(frozen=True, slots=True)
class _Registered:
    mapping: Mapping
    registration: Any


class NixlOffers:
    """Segments of this host as another host's agent sees them. Belongs to one event loop."""

    def __init__(self, store: BlobStore, agent: NixlAgent) -> None:
        self._store = store
        self._agent = agent
        self._segments: dict[SegmentId, _Registered] = {}
        self._registering = asyncio.Lock()
        self._readers: set[LeaseId] = set()
        self._serving: asyncio.Task[None] | None = None

    async def describe(
        self, names: Sequence[BlobName], lease_id: LeaseId, ttl: float
    ) -> Description:
        """Leases blobs, and says where they are. Raises Unavailable where NIXL fails."""
        found, missing = self._store.acquire(names, lease_id, ttl)
        try:
            await self._agent.start()
            await self._register({stored.place.segment_id: stored for _, stored in found})
            metadata = await self._agent.metadata()
        except NixlFailed as error:
            self._store.release(lease_id)
            raise errors.Unavailable(f"NIXL: {error}", reason="NIXL_FAILED") from error
        except BaseException:
            self._store.release(lease_id)
            raise
        self._serve(lease_id)
        offered = tuple(one for name, stored in found if (one := self._offer(name, stored)))
        absent = {name for name, _ in found} - {one.name for one in offered}
        return Description(metadata, self._agent.name, offered, (*missing, *absent))

    def _serve(self, reader: LeaseId) -> None:
        """Moves reads on until every reader's lease has ended."""
        self._readers.add(reader)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve_readers())

    async def _serve_readers(self) -> None:
        try:
            await self._agent.serve(self._has_readers)
        except NixlFailed as error:
            log.warning("reads by NIXL stand still: %s", error)

    def _has_readers(self) -> bool:
        self._readers = {reader for reader in self._readers if reader in self._store.leases}
        return bool(self._readers)

    def _offer(self, name: BlobName, stored: Stored) -> Offered | None:
        """The blob, if its place still says that it is in it."""
        known = self._segments.get(stored.place.segment_id)
        if known is None:
            return None
        segment = known.mapping.bytes
        if read_generation(segment, stored.place) != stored.place.generation:
            self._store.discard(name, stored.place)
            return None
        return Offered(name, segment.ctypes.data + stored.place.payload.start, stored)

    async def _register(self, wanted: dict[SegmentId, Stored]) -> None:
        """Registers each segment that is still there, once."""
        async with self._registering:
            for segment_id, stored in wanted.items():
                if segment_id in self._segments:
                    continue
                try:
                    # For writing, though nobody does: RDMA cards register no read-only pages.
                    mapping = Mapping(stored.segment_path, writable=True)
                except OSError:
                    continue
                mapping.pin()
                registration = await self._agent.register(mapping.bytes)
                self._segments[segment_id] = _Registered(mapping, registration)

    async def drop_stale(self) -> None:
        """Lets go of segments whose owner is gone."""
        async with self._registering:
            for segment_id, one in list(self._segments.items()):
                if one.mapping.is_stale():
                    del self._segments[segment_id]
                    try:
                        await self._agent.deregister(one.registration)
                    except NixlFailed as error:
                        log.warning("a segment stays mapped: %s", error)
                        continue
                    one.mapping.unpin()
                    one.mapping.retire()

    async def close(self) -> None:
        """Serves no more readers."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
