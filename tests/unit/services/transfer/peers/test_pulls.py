"""Who waits for which blob: joins, departures, other sources."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import pytest
import xxhash

from baton import errors
from baton.naming import BlobName, LeaseId
from services.common.transfer.copying import CopyThreads
from services.common.transfer.place import Checksum, extent_bytes
from services.transfer.attachments import Attachments
from services.transfer.liveness import watch_process
from services.transfer.peers.landing import Landing
from services.transfer.peers.pulls import Pulls
from services.transfer.peers.reader import Piece, absent
from services.transfer.peers.segment import PeerSegment
from services.transfer.room import RoomQueue
from services.transfer.store import BlobStore
from tests.support.clock import FakeClock

A, B, C = (BlobName(letter * 16) for letter in (b"a", b"b", b"c"))
DATA = b"payload" * 10
WHOLE = Checksum(xxhash.xxh3_64_intdigest(DATA))


class Sources:
    """A reader of hosts that hold what the test says, when the test says so."""

    def __init__(self) -> None:
        self.holds: dict[str, set[BlobName]] = {}
        self.reads: list[tuple[str, tuple[BlobName, ...]]] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.ended = 0

    async def read(self, source: str, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        self.reads.append((source, tuple(names)))
        try:
            if source in self.gates:
                await self.gates[source].wait()
            if source not in self.holds:
                raise errors.Unavailable("gone")
            for name in names:
                held = name in self.holds[source]
                yield Piece(name, 0, DATA, len(DATA), WHOLE) if held else absent(name)
        finally:
            self.ended += 1

    async def close(self) -> None:
        pass


class Rig:
    """Pulls over a real store and segment."""

    def __init__(self, directory: Path) -> None:
        self.sources = Sources()
        self.store = BlobStore(FakeClock())
        self.room = RoomQueue(self.store)
        self.attachments = Attachments(self.store, self.room, directory, watch_process)
        self.threads = CopyThreads(1, None)
        size = 4 * extent_bytes(len(DATA))
        self.segment = PeerSegment(self.store, self.room, self.attachments, size)
        landing = Landing(self.segment, self.threads, 1.0)
        self.pulls = Pulls(self.store, landing, self.sources)

    async def pull(
        self, *names: BlobName, source: str = "one", lease: str = "l", patience_s: float = 2.0
    ) -> set[BlobName]:
        came: set[BlobName] = set()
        async for found in self.pulls.pull(names, source, LeaseId(lease), 9.0, patience_s):
            came |= {name for name, _ in found}
        return came

    def check(self) -> None:
        self.store.check_integrity()
        self.pulls.check_integrity()
        assert not any(space.reserved for space in self.store.spaces)

    async def close(self) -> None:
        await self.pulls.close()
        await self.segment.close()
        self.threads.close()
        await self.attachments.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="pulls-") as directory:
        rig = Rig(Path(directory))
        yield rig
        rig.check()
        await rig.close()


async def test_what_comes_is_bound_under_the_lease_and_the_rest_is_not_there(rig: Rig) -> None:
    rig.sources.holds["one"] = {A, C}
    assert await rig.pull(A, B, C) == {A, C}
    assert rig.store.leases.leased_blobs == 2
    assert (rig.pulls.counters.blobs, rig.pulls.counters.failures) == (2, 0)
    assert rig.sources.ended == 1


async def test_those_who_want_the_same_share_a_read_and_each_has_a_lease(rig: Rig) -> None:
    rig.sources.holds["one"] = {A, B, C}
    gate = rig.sources.gates["one"] = asyncio.Event()
    first = asyncio.create_task(rig.pull(A, B, lease="first"))
    await asyncio.sleep(0)
    second = asyncio.create_task(rig.pull(B, C, lease="second"))
    await asyncio.sleep(0.01)
    rig.check()
    gate.set()
    assert (await first, await second) == ({A, B}, {B, C})
    assert rig.sources.reads == [("one", (A, B)), ("one", (C,))]
    rig.store.release(LeaseId("first"))
    assert rig.store.leases.leased_blobs == 2


async def test_a_read_ends_with_the_last_who_waits(rig: Rig) -> None:
    rig.sources.gates["one"] = asyncio.Event()
    waiting = [asyncio.create_task(rig.pull(A, lease=f"{i}")) for i in range(2)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    await asyncio.sleep(0.01)
    assert rig.sources.ended == 0
    waiting[1].cancel()
    await asyncio.sleep(0.01)
    assert rig.sources.ended == 1
    assert rig.pulls.counters.failures == 0


async def test_a_new_reader_does_not_join_a_read_that_was_given_up(rig: Rig) -> None:
    gate = rig.sources.gates["one"] = asyncio.Event()
    rig.sources.holds["one"] = {A}
    assert await rig.pull(A, patience_s=0.01) == set()
    gate.set()
    assert await rig.pull(A) == {A}
    assert len(rig.sources.reads) == 2


async def test_patience_of_each_is_its_own(rig: Rig) -> None:
    rig.sources.holds["one"] = {A}
    gate = rig.sources.gates["one"] = asyncio.Event()
    patient = asyncio.create_task(rig.pull(A, lease="patient"))
    await asyncio.sleep(0)
    assert await rig.pull(A, lease="hasty", patience_s=0.02) == set()
    gate.set()
    assert await patient == {A}
    assert len(rig.sources.reads) == 1


async def test_who_knows_another_source_has_it_tried_when_the_first_fails(rig: Rig) -> None:
    rig.sources.holds["two"] = {A, B}
    gate = rig.sources.gates["one"] = asyncio.Event()
    first = asyncio.create_task(rig.pull(A, B))
    await asyncio.sleep(0)
    second = asyncio.create_task(rig.pull(A, B, source="two", lease="second"))
    await asyncio.sleep(0.01)
    assert len(rig.sources.reads) == 1
    gate.set()  # and "one" is gone
    assert (await first, await second) == (set(), {A, B})
    assert [source for source, _ in rig.sources.reads] == ["one", "two"]


async def test_what_is_held_meanwhile_by_another_way_keeps_its_first_place(rig: Rig) -> None:
    rig.sources.holds["one"] = {A}
    assert await rig.pull(A) == {A}
    ((_, before),), _ = rig.store.acquire([A], LeaseId(""), 0)
    assert await rig.pull(A, lease="again") == {A}
    ((_, after),), _ = rig.store.acquire([A], LeaseId(""), 0)
    assert before == after


async def test_closing_tells_all_who_wait(rig: Rig) -> None:
    rig.sources.gates["one"] = asyncio.Event()
    waiting = asyncio.create_task(rig.pull(A, B))
    await asyncio.sleep(0)
    await rig.pulls.close()
    assert await waiting == set()
    assert await rig.pull(A) == set()


async def test_more_than_there_is_room_for(rig: Rig) -> None:
    names = [BlobName(bytes([number]) * 16) for number in range(6)]
    rig.sources.holds["one"] = set(names)
    assert await rig.pull(*names, lease="l") == set(names[:4])
    assert rig.pulls.counters.failures == 2
