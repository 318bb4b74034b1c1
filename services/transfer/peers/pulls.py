"""Who waits for which blob of another host, and the reads that bring them.

A name is read once at a time, however many wait for it, and as long as anybody does: each waits
until a deadline of its own. What comes is bound, and put under the leases of all who wait, in
one step: so nothing can evict it before.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from baton import errors
from baton.naming import BlobName, LeaseId
from services.common.integrity import ensure
from services.common.transfer.place import Stored
from services.transfer.peers.landing import Landed, Landing
from services.transfer.peers.reader import PEER_PAUSED, PeerReader
from services.transfer.store import Blob, BlobStore

log = logging.getLogger(__name__)

_BYTES_PER_SECOND = 0.5e9
"""What reading a blob again costs: eviction weighs that, not what computing it once cost."""

Found = tuple[BlobName, Stored]


@dataclass(slots=True)
class PeerCounters:
    """What was read from other hosts since the start."""

    blobs: int = 0
    bytes: int = 0
    failures: int = 0
    """Names that could not be read although the peer may hold them."""
    waited_s: float = 0.0
    """Time that those who asked waited."""


@dataclass(eq=False, slots=True)
class _Waiter:
    source: str
    lease_id: LeaseId
    ttl: float
    wanted: set[BlobName]
    """Names that may still come."""
    arrived: list[Found] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, slots=True)
class _Read:
    source: str
    waiters: dict[BlobName, set[_Waiter]]
    """Of each name that may still come."""
    task: asyncio.Task[None] | None = None


class Pulls:
    """All reads from other hosts. Belongs to one event loop."""

    def __init__(self, store: BlobStore, landing: Landing, reader: PeerReader) -> None:
        self.counters = PeerCounters()
        self._store = store
        self._landing = landing
        self._reader = reader
        self._reads: dict[BlobName, _Read] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def pull(
        self,
        names: Sequence[BlobName],
        source: str,
        lease_id: LeaseId,
        ttl: float,
        patience_s: float,
    ) -> AsyncGenerator[list[Found], None]:
        """Reads blobs from `source` (host:port); yields them, under the lease, as they come.

        Ends when all came that will, at the latest after `patience_s`.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        waiter = _Waiter(source, lease_id, ttl, set(names))
        self._join(waiter, list(dict.fromkeys(names)))
        try:
            while waiter.wanted or waiter.arrived:
                if waiter.arrived:
                    found, waiter.arrived = waiter.arrived, []
                    yield found
                    continue
                waiter.news.clear()
                async with asyncio.timeout_at(began + patience_s):
                    await waiter.news.wait()
        except TimeoutError:
            log.info("%d blobs of %s did not come in time", len(waiter.wanted), source)
        finally:
            self.counters.waited_s += clock() - began
            self._leave(waiter)

    def _join(self, waiter: _Waiter, names: Sequence[BlobName]) -> None:
        """Waits for reads that run, and starts one for the other names."""
        new = [name for name in names if name not in self._reads]
        for name in names:
            if name in self._reads:
                self._reads[name].waiters[name].add(waiter)
        if not new:
            return
        if self._closed:
            self._miss(waiter, new)
            return
        read = _Read(waiter.source, {name: {waiter} for name in new})
        self._reads.update(dict.fromkeys(new, read))
        read.task = asyncio.create_task(self._run(read))
        self._tasks.add(read.task)
        read.task.add_done_callback(lambda _: self._ended(read))

    def _leave(self, waiter: _Waiter) -> None:
        """Waits for nothing any more; a read that nobody waits for ends."""
        for name in waiter.wanted:
            read = self._reads.get(name)
            if read is not None and waiter in read.waiters[name]:
                read.waiters[name].remove(waiter)
                if not any(read.waiters.values()):
                    self._give_up(read)
        waiter.wanted.clear()

    def _give_up(self, read: _Read) -> None:
        for name in read.waiters:
            del self._reads[name]
        read.waiters.clear()
        if read.task is not None:
            read.task.cancel()

    async def _run(self, read: _Read) -> None:
        try:
            reading = self._reader.read(read.source, tuple(read.waiters))
            async with aclosing(reading) as pieces, aclosing(self._landing.land(pieces)) as landed:
                async for one in landed:
                    self._settle(read, one)
                    if not read.waiters:
                        break
        except errors.BatonError as error:
            paused = error.reason == PEER_PAUSED
            level = logging.DEBUG if paused else logging.WARNING
            log.log(level, "cannot read from %s: %s", read.source, error)
        except Exception:
            log.exception("reading from %s failed", read.source)

    def _ended(self, read: _Read) -> None:
        # Not at the end of `_run`: one that is cancelled before its first step never gets there.
        if read.task is not None:
            self._tasks.discard(read.task)
        self.counters.failures += len(read.waiters)
        self._fail(read, list(read.waiters))

    def _settle(self, read: _Read, landed: Landed) -> None:
        name, place = landed.name, landed.place
        if place is None or name not in read.waiters:
            if place is not None:
                self._store.abandon(self._landing.segment.incarnation, [place])
            if name in read.waiters:
                self.counters.failures += landed.broken
                self._fail(read, [name])
            return
        blob = Blob(name, place, landed.checksum, place.size / _BYTES_PER_SECOND)
        self._store.commit(self._landing.segment.incarnation, [blob], LeaseId(""), 0.0)
        self.counters.blobs += 1
        self.counters.bytes += place.size
        del self._reads[name]
        for waiter in read.waiters.pop(name):
            found, _ = self._store.acquire([name], waiter.lease_id, waiter.ttl)
            waiter.wanted.discard(name)
            waiter.arrived += found
            waiter.news.set()

    def _fail(self, read: _Read, names: Sequence[BlobName]) -> None:
        """Tells who waits; those who know another source have it tried."""
        again: dict[_Waiter, list[BlobName]] = {}
        for name in names:
            del self._reads[name]
            for waiter in read.waiters.pop(name):
                if waiter.source == read.source:
                    self._miss(waiter, [name])
                else:
                    again.setdefault(waiter, []).append(name)
        for waiter, left in again.items():
            self._join(waiter, left)

    def _miss(self, waiter: _Waiter, names: Sequence[BlobName]) -> None:
        waiter.wanted.difference_update(names)
        waiter.news.set()

    async def close(self) -> None:
        """Ends all reads; who waits is told at once."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def check_integrity(self) -> None:
        """Raises BrokenInvariant unless every name waited for has a read that runs."""
        for name, read in self._reads.items():
            ensure(name in read.waiters, f"pulls: a read does not know {name.hex()}")
            ensure(
                read.task is not None and read.task in self._tasks,
                f"pulls: nothing reads {name.hex()}",
            )
            ensure(any(read.waiters.values()), f"pulls: nobody waits for {name.hex()}'s read")
