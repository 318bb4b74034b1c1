import asyncio

import pytest

from baton import errors
from baton.naming import BlobName, Incarnation, LeaseId, WorkerId
from services.common.transfer.place import Checksum, Place, SegmentId
from services.transfer.room import RoomQueue
from services.transfer.store import Blob, BlobStore
from tests.support.clock import FakeClock

ONE, LEASE, LONG = Incarnation("one"), LeaseId("lease"), 30.0
PAYLOAD = 64


@pytest.fixture
def store() -> BlobStore:
    store = BlobStore(FakeClock())
    store.add_space(ONE, WorkerId("w"), SegmentId("s"), "/s", 128 * 4)
    return store


@pytest.fixture
def room(store: BlobStore) -> RoomQueue:
    return RoomQueue(store)


async def waiting(room: RoomQueue, places: int, wait_s: float = LONG) -> asyncio.Task[list[Place]]:
    """A reservation that has taken its turn in the queue."""
    task = asyncio.create_task(room.reserve(ONE, [PAYLOAD] * places, wait_s))
    await settle()
    return task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def check(room: RoomQueue, store: BlobStore) -> None:
    store.check_integrity()
    room.check_integrity()


async def test_without_waiting_what_fits_is_given(room: RoomQueue, store: BlobStore) -> None:
    assert len(await room.reserve(ONE, [PAYLOAD] * 3, 0)) == 3
    assert len(await room.reserve(ONE, [PAYLOAD] * 3, 0)) == 1
    assert await room.reserve(ONE, [PAYLOAD], 0) == []
    check(room, store)


async def test_more_than_the_segment_holds_is_cut_at_once(room: RoomQueue) -> None:
    async with asyncio.timeout(1):
        assert len(await room.reserve(ONE, [PAYLOAD] * 9, LONG)) == 4
        assert await room.reserve(ONE, [10_000], LONG) == []


async def test_waiting_ends_when_room_comes_free(room: RoomQueue, store: BlobStore) -> None:
    taken = await room.reserve(ONE, [PAYLOAD] * 4, 0)
    task = await waiting(room, 2)
    store.abandon(ONE, taken[:1])
    await settle()
    assert not task.done()
    check(room, store)
    store.abandon(ONE, taken[1:2])
    assert len(await task) == 2
    check(room, store)


async def test_waiting_is_bounded_and_gives_what_there_is(
    room: RoomQueue, store: BlobStore
) -> None:
    await room.reserve(ONE, [PAYLOAD] * 3, 0)
    assert len(await room.reserve(ONE, [PAYLOAD] * 2, 0.02)) == 1
    check(room, store)


async def test_first_come_first_served(room: RoomQueue, store: BlobStore) -> None:
    taken = await room.reserve(ONE, [PAYLOAD] * 4, 0)
    large, small = await waiting(room, 3), await waiting(room, 1)
    assert await room.reserve(ONE, [PAYLOAD], 0) == []
    store.abandon(ONE, taken[:2])
    await settle()
    assert not small.done()
    store.abandon(ONE, taken[2:])
    assert len(await large) == 3
    assert len(await small) == 1
    check(room, store)


async def test_a_cancelled_waiter_takes_nothing_and_lets_the_next_one_pass(
    room: RoomQueue, store: BlobStore
) -> None:
    taken = await room.reserve(ONE, [PAYLOAD] * 4, 0)
    large, small = await waiting(room, 3), await waiting(room, 2)
    store.abandon(ONE, taken[:2])
    large.cancel()
    assert len(await small) == 2
    assert large.cancelled()
    assert len(store.space(ONE).reserved) == 4
    check(room, store)


async def test_a_waiter_cancelled_just_when_it_is_served_takes_nothing(
    room: RoomQueue, store: BlobStore
) -> None:
    taken = await room.reserve(ONE, [PAYLOAD] * 4, 0)
    task = await waiting(room, 2)
    store.abandon(ONE, taken)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.space(ONE).reserved == {}
    check(room, store)


async def test_the_end_of_a_lease_makes_room(room: RoomQueue, store: BlobStore) -> None:
    places = await room.reserve(ONE, [PAYLOAD] * 4, 0)
    blobs = [Blob(BlobName(bytes([i]) * 16), p, Checksum(0), 1) for i, p in enumerate(places)]
    store.commit(ONE, blobs, LEASE, 5)
    task = await waiting(room, 4)
    assert not task.done()
    store.release(LEASE)
    assert len(await task) == 4


async def test_waiting_fails_with_its_attachment(room: RoomQueue, store: BlobStore) -> None:
    await room.reserve(ONE, [PAYLOAD] * 3, 0)
    tasks = [await waiting(room, 2), await waiting(room, 1)]
    store.drop_space(ONE)
    room.fail(ONE)
    for task in tasks:
        with pytest.raises(errors.LayoutMismatch):
            await task
    check(room, store)
    with pytest.raises(errors.LayoutMismatch):
        await room.reserve(ONE, [PAYLOAD], 0)
