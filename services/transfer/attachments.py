"""Which worker incarnations are attached, and the segment of each.

An incarnation keeps its segment while its connection is open or its process lives, whatever
time passes. Creating a segment takes long: it runs in a thread, and goes on when the worker
that asked gives up, for it will ask again.
"""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from baton import errors
from baton.naming import Incarnation, WorkerId
from services.common.integrity import ensure
from services.transfer import segments
from services.transfer.liveness import IsGone, WatchProcess
from services.transfer.room import RoomQueue
from services.transfer.segments import SegmentFile
from services.transfer.store import BlobStore

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Member:
    worker_id: WorkerId
    pid: int
    is_gone: IsGone
    segment: asyncio.Task[SegmentFile]
    connections: int = 0


class Attachments:
    """Members and their segments. Belongs to one event loop."""

    def __init__(
        self, store: BlobStore, room: RoomQueue, directory: Path, watch: WatchProcess
    ) -> None:
        self._store = store
        self._room = room
        self._directory = directory
        self._watch = watch
        self._members: dict[Incarnation, _Member] = {}
        self._closing = asyncio.Event()

    async def attach(
        self, worker_id: WorkerId, incarnation: Incarnation, pid: int, size_bytes: int
    ) -> SegmentFile:
        """Counts a connection, until `detach`, and returns the incarnation's segment.

        One that attaches again gets its segment again, with nothing reserved. Raises Exhausted
        where shared memory is too small, and then counts nothing.
        """
        if self._closing.is_set():
            raise errors.Unavailable("the transfer service is stopping")
        self.sweep()
        member = self._members.get(incarnation)
        if member is None:
            is_gone = self._watch(pid)
            creating = asyncio.create_task(self._create(worker_id, incarnation, size_bytes))
            member = self._members[incarnation] = _Member(worker_id, pid, is_gone, creating)
        elif member.pid != pid:
            raise errors.InvalidRequest("pid", f"incarnation {incarnation!r} is another process")
        elif member.segment.done():
            self._store.abandon_all(incarnation)
            self._room.fail(incarnation)
        member.connections += 1
        try:
            return await asyncio.shield(member.segment)
        except BaseException:
            self.detach(incarnation)
            raise

    def detach(self, incarnation: Incarnation) -> None:
        """Ends one connection."""
        member = self._members.get(incarnation)
        if member is not None:
            member.connections -= 1
            self.sweep()

    def sweep(self) -> None:
        """Reclaims the segments of incarnations with neither connection nor process."""
        for incarnation, member in list(self._members.items()):
            if member.connections == 0 and member.segment.done() and member.is_gone():
                log.info("%s (%s) is dead: reclaiming", member.worker_id, incarnation)
                self._reclaim(incarnation, member)

    async def wait_closing(self) -> None:
        """Waits until the service stops."""
        await self._closing.wait()

    def stop(self) -> None:
        """Takes no more incarnations and lets connections end."""
        self._closing.set()

    async def close(self) -> None:
        """Removes all segments."""
        self.stop()
        while self._members:
            incarnation, member = next(iter(self._members.items()))
            await asyncio.wait([member.segment])
            if self._members.get(incarnation) is member:
                self._reclaim(incarnation, member)

    async def _create(
        self, worker_id: WorkerId, incarnation: Incarnation, size_bytes: int
    ) -> SegmentFile:
        try:
            segment = await asyncio.to_thread(segments.create, self._directory, size_bytes)
        except Exception:
            del self._members[incarnation]
            raise
        self._store.add_space(
            incarnation, worker_id, segment.segment_id, str(segment.path), size_bytes
        )
        log.info("%s (%s) attached with %d bytes", worker_id, incarnation, size_bytes)
        return segment

    def _reclaim(self, incarnation: Incarnation, member: _Member) -> None:
        del self._members[incarnation]
        self._store.drop_space(incarnation)
        self._room.fail(incarnation)
        member.segment.result().remove()

    def check_integrity(self) -> None:
        """Raises BrokenInvariant unless each space belongs to a member with its file in place."""
        ready = {key: member for key, member in self._members.items() if member.segment.done()}
        spaces = {space.incarnation: space for space in self._store.spaces}
        ensure(ready.keys() == spaces.keys(), "attachments: members and spaces differ")
        for incarnation, member in ready.items():
            ensure(member.connections >= 0, f"attachments: {incarnation} is detached twice")
            path = member.segment.result().path
            ensure(path.exists(), f"attachments: segment {path} is gone")
            ensure(
                str(path) == spaces[incarnation].segment_path,
                f"attachments: {incarnation} has two segments",
            )
