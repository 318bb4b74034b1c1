"""The other side of a read: streams blobs that are held here to another host.

The blobs are under a lease of the stream's own while it runs. Nothing of them is pinned while
the reader takes its time: every piece is checked for its place's generation, and the whole for
its checksum, so that a reader that sleeps past the lease gets no foreign bytes.
"""

import logging
from collections.abc import AsyncGenerator, Sequence

import numpy as np
import xxhash

from baton.naming import BlobName, LeaseId, new_id
from services.common.transfer.copying import CopyThreads
from services.common.transfer.mapping import ReaderMaps
from services.common.transfer.place import HEADER_BYTES, Bytes, Stored, read_generation
from services.transfer.peers.reader import PIECE_BYTES, Piece, absent
from services.transfer.store import BlobStore

log = logging.getLogger(__name__)

_LEASE_S = 5.0


class Offers:
    """Streams held blobs, whatever segment they are in. Belongs to one event loop."""

    def __init__(self, store: BlobStore, threads: CopyThreads) -> None:
        self._store = store
        self._threads = threads
        self._maps = ReaderMaps()

    async def stream(self, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        """The pieces of each blob; `absent` for one that is not held or is broken."""
        lease_id = LeaseId(new_id("peer-read"))
        found, missing = self._store.acquire(names, lease_id, _LEASE_S)
        try:
            for name in missing:
                yield absent(name)
            for name, stored in found:
                self._store.leases.renew(lease_id, _LEASE_S)
                async for piece in self._pieces(name, stored):
                    yield piece
        finally:
            if found:
                self._store.release(lease_id)

    async def _pieces(self, name: BlobName, stored: Stored) -> AsyncGenerator[Piece, None]:
        size, hasher = stored.place.size, xxhash.xxh3_64()
        for start in range(0, size, PIECE_BYTES):
            stop = min(start + PIECE_BYTES, size)
            data = await self._copy(stored, start, stop, hasher)
            if data is None or (stop == size and hasher.intdigest() != stored.checksum):
                log.warning("blob %s is broken in %s", name.hex(), stored.place)
                self._store.discard(name, stored.place)
                yield absent(name)
                return
            yield Piece(name, start, data, size, stored.checksum)

    async def _copy(
        self, stored: Stored, start: int, stop: int, hasher: xxhash.xxh3_64
    ) -> bytes | None:
        """A piece of a payload, added to its hash; None where the place holds another one."""
        place = stored.place
        try:
            mapping = self._maps.pin(place.segment_id, stored.segment_path)
        except OSError:
            return None

        def copy(segment: Bytes = mapping.bytes) -> bytes | None:
            begin = place.offset + HEADER_BYTES
            buffer = np.empty(stop - start, np.uint8)
            np.copyto(buffer, segment[begin + start : begin + stop])  # releases the GIL
            hasher.update(buffer.data)
            whole = read_generation(segment, place) == place.generation
            return buffer.tobytes() if whole else None

        try:
            return await self._threads.run(copy)
        finally:
            mapping.unpin()

    def drop_stale(self) -> None:
        """Lets go of segments whose owner is gone."""
        self._maps.drop_stale()

    def close(self) -> None:
        """Lets go of all segments."""
        self._maps.close()
