"""The segment that this service owns itself, for what it reads from other hosts.

It is attached like a worker's, under this process, at the first blob that needs it: a host that
reads from no other has none.
"""

import asyncio
import logging
import os
from dataclasses import dataclass

from baton import errors
from baton.naming import Incarnation, WorkerId, new_id
from services.common.transfer.mapping import Mapping
from services.common.transfer.place import Place
from services.transfer.attachments import Attachments
from services.transfer.room import RoomQueue
from services.transfer.store import BlobStore

log = logging.getLogger(__name__)

WORKER_ID = WorkerId("peer-reads")


@dataclass(frozen=True, slots=True)
class Reserved:
    """A place of ours to write into."""

    place: Place
    mapping: Mapping


class PeerSegment:
    """Room for blobs of other hosts. Belongs to one event loop."""

    def __init__(
        self, store: BlobStore, room: RoomQueue, attachments: Attachments, size_bytes: int
    ) -> None:
        self.incarnation = Incarnation(new_id("peer"))
        self._store = store
        self._room = room
        self._attachments = attachments
        self._size_bytes = size_bytes
        self._opening: asyncio.Task[Mapping] | None = None
        self._populating: asyncio.Task[None] | None = None

    async def reserve(self, size: int, wait_s: float) -> Reserved | None:
        """A place for `size` bytes; None where there is no room within `wait_s`.

        Raises Exhausted where the host has no shared memory for the segment.
        """
        mapping = await self._mapping()
        places = await self._room.reserve(self.incarnation, [size], wait_s)
        return Reserved(places[0], mapping) if places else None

    def abandon(self, reserved: Reserved) -> None:
        """Gives a place back that was not bound."""
        self._store.abandon(self.incarnation, [reserved.place])

    async def _mapping(self) -> Mapping:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        try:
            # It goes on when the one who asked gives up: the next one needs it, too.
            return await asyncio.shield(opening)
        except errors.BatonError as error:
            if self._opening is opening:
                log.warning("no room for blobs of other hosts: %s", error)
                self._opening = None
            raise

    async def _open(self) -> Mapping:
        segment = await self._attachments.attach(
            WORKER_ID, self.incarnation, os.getpid(), self._size_bytes
        )
        mapping = Mapping(str(segment.path), writable=True)
        mapping.pin()
        self._populating = asyncio.create_task(asyncio.to_thread(mapping.populate))
        self._populating.add_done_callback(lambda _: mapping.unpin())
        return mapping

    async def close(self) -> None:
        """Unmaps the segment; call it when nothing writes into it any more."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
            if not self._opening.cancelled() and self._opening.exception() is None:
                mapping = self._opening.result()
                mapping.retire()  # which ends the populating, too
                await mapping.wait_closed()
            self._opening = None
