"""What holds between two hosts, whatever carries the bytes."""

import asyncio
import time

import pytest

from baton.naming import LeaseId
from services.common.transfer.client import TransferClient
from services.common.transfer.place import extent_bytes
from services.transfer.peers.segment import WORKER_ID
from tests.support.transfer import MIB, Blobs, PeerBackend, ShmBackend, settled

SIZE = 4096
SECONDS = 5.0
LARGE = 5 * MIB + 3
"""More than a piece, and than a slot."""


async def published(peers: PeerBackend, blobs: Blobs, lease: LeaseId) -> TransferClient:
    """A worker that published `blobs`."""
    writer = await peers.client(64 * MIB)
    assert await writer.publish(blobs.outgoing(), lease, SECONDS) == set(blobs.names)
    return writer


async def unleased(peers: PeerBackend, patience_s: float = 2.0) -> None:
    async with asyncio.timeout(patience_s):
        while any(status.leases for status in await peers.statuses()):
            await asyncio.sleep(0.02)


async def test_what_was_read_is_held_here_from_then_on(peers: PeerBackend, lease: LeaseId) -> None:
    blobs = Blobs(20, SIZE)
    await published(peers, blobs, lease)
    reader, second = await peers.reader(), await peers.other.client()
    assert await second.lookup(blobs.names) == frozenset()
    assert await blobs.fetch(second, lease) == frozenset()  # which was told no source
    assert await blobs.fetch(reader, lease) == set(blobs.names)
    assert await second.lookup(blobs.names) == set(blobs.names)
    given = (await peers.status()).acquired_blobs
    assert await blobs.fetch(second, lease) == set(blobs.names)
    assert (await peers.status()).acquired_blobs == given
    here = await peers.other.status()
    assert (here.peer_blobs, here.peer_bytes, here.peer_failures) == (20, 20 * SIZE, 0)
    assert WORKER_ID in {segment.worker_id for segment in here.segments}


async def test_blobs_of_many_pieces(peers: PeerBackend, lease: LeaseId) -> None:
    blobs = Blobs(3, LARGE)
    blobs.data |= Blobs(3, MIB).data | Blobs(3, 1).data
    await published(peers, blobs, lease)
    assert await blobs.fetch(await peers.reader(), lease) == set(blobs.names)


async def test_readers_of_one_name_share_one_read(peers: PeerBackend, lease: LeaseId) -> None:
    blobs = Blobs(4, LARGE)
    await published(peers, blobs, lease)
    readers = [await peers.reader() for _ in range(4)]
    answers = await asyncio.gather(*(blobs.fetch(reader, lease) for reader in readers))
    assert all(answer == set(blobs.names) for answer in answers)
    assert (await peers.other.status()).peer_blobs == 4
    assert (await peers.status()).acquired_blobs == 4


async def test_one_that_leaves_does_not_end_the_read_of_another(
    peers: PeerBackend, lease: LeaseId
) -> None:
    blobs = Blobs(6, LARGE)
    await published(peers, blobs, lease)
    leaver, stayer = await peers.reader(), await peers.reader()
    leaving = asyncio.create_task(blobs.fetch(leaver, LeaseId("leaver")))
    await asyncio.sleep(0.005)
    staying = asyncio.create_task(blobs.fetch(stayer, LeaseId("stayer")))
    await asyncio.sleep(0.01)
    leaving.cancel()
    assert await staying == set(blobs.names)


async def test_the_leases_of_both_sides_are_their_own(peers: PeerBackend, lease: LeaseId) -> None:
    blobs = Blobs(5, SIZE)
    writer, reader = await published(peers, blobs, lease), await peers.reader()
    await blobs.fetch(reader, LeaseId("reader"))
    await writer.release_lease(lease)
    async with asyncio.timeout(2):
        while (await peers.status()).leases:  # the read's own lease ends with it
            await asyncio.sleep(0.02)
    assert (await peers.other.status()).leased_blobs == 5
    await reader.release_lease(LeaseId("reader"))
    await unleased(peers)


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.03])
async def test_a_read_that_nobody_waits_for_ends(
    peers: PeerBackend, lease: LeaseId, delay: float
) -> None:
    blobs = Blobs(8, LARGE)
    writer, reader = await published(peers, blobs, lease), await peers.reader()
    fetching = asyncio.create_task(blobs.fetch(reader, lease))
    await asyncio.sleep(delay)
    fetching.cancel()
    await asyncio.wait([fetching])
    await settled(peers, 5.0)
    await writer.release_lease(lease)
    await reader.release_lease(lease)
    await unleased(peers)
    assert await blobs.fetch(reader, LeaseId("again")) == set(blobs.names)


async def test_a_host_that_is_not_there_is_told_at_once(peers: PeerBackend, lease: LeaseId) -> None:
    blobs = Blobs(2, SIZE)
    reader = await peers.reader()
    for nowhere in ("127.0.0.1:1", "no such host", peers.other.address):
        reader.source = nowhere  # type: ignore[attr-defined]
        began = time.monotonic()
        assert await blobs.fetch(reader, lease) == frozenset()
        assert time.monotonic() - began < 4.0


async def test_names_that_the_other_host_lacks_are_missing_at_once(
    peers: PeerBackend, lease: LeaseId
) -> None:
    blobs = Blobs(4, SIZE)
    await published(peers, blobs, lease)
    reader = await peers.reader()
    blobs.data = Blobs(2, SIZE).data | blobs.data | Blobs(2, SIZE).data
    began = time.monotonic()
    assert len(await blobs.fetch(reader, lease)) == 4
    assert time.monotonic() - began < 4.0
    assert (await peers.other.status()).missed_names == 4


class TestSmallSegment:
    """Eight blobs have room for what comes from elsewhere."""

    @pytest.fixture
    async def peers(self) -> PeerBackend:
        small = ShmBackend(peer_segment_bytes=8 * extent_bytes(SIZE))
        return PeerBackend(ShmBackend(), small)

    @pytest.fixture(autouse=True)
    async def _running(self, peers: PeerBackend):
        await peers.start()
        yield
        await peers.stop()

    async def test_what_is_not_leased_makes_room(self, peers: PeerBackend) -> None:
        reader = await peers.reader()
        for number in range(4):
            lease, blobs = LeaseId(f"round-{number}"), Blobs(6, SIZE)
            await published(peers, blobs, lease)
            assert await blobs.fetch(reader, lease) == set(blobs.names)
            await reader.release_lease(lease)
        assert (await peers.other.status()).evicted_blobs == 16

    async def test_what_is_leased_does_not_and_the_wait_is_bounded(
        self, peers: PeerBackend, lease: LeaseId
    ) -> None:
        reader, blobs = await peers.reader(), Blobs(12, SIZE)
        await published(peers, blobs, lease)
        began = time.monotonic()
        assert await blobs.fetch(reader, lease) == set(blobs.names[:8])
        assert time.monotonic() - began < 4.5
        await settled(peers, 5.0)

    async def test_a_blob_that_never_fits_is_missing_at_once(
        self, peers: PeerBackend, lease: LeaseId
    ) -> None:
        reader, blobs = await peers.reader(), Blobs(1, 9 * SIZE)
        await published(peers, blobs, lease)
        async with asyncio.timeout(4):
            assert await blobs.fetch(reader, lease) == frozenset()

    async def test_who_waits_for_room_waits_no_longer_than_it_may(
        self, peers: PeerBackend, lease: LeaseId
    ) -> None:
        reader, blobs, other = await peers.reader(), Blobs(8, SIZE), Blobs(1, SIZE)
        await published(peers, blobs, lease)
        await published(peers, other, lease)
        await blobs.fetch(reader, lease)
        began = time.monotonic()
        assert await other.fetch(reader, LeaseId("other"), 0.3) == frozenset()
        assert time.monotonic() - began < 3.0
        await settled(peers, 5.0)


async def test_without_shared_memory_for_it_nothing_is_read(lease: LeaseId) -> None:
    peers = PeerBackend(ShmBackend(), ShmBackend(peer_segment_bytes=1 << 60))
    await peers.start()
    blobs = Blobs(1, SIZE)
    await published(peers, blobs, lease)
    for _ in range(2):
        assert await blobs.fetch(await peers.reader(), lease) == frozenset()
    await peers.stop()
