import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton import errors
from baton.naming import Incarnation, WorkerId
from services.transfer.attachments import Attachments
from services.transfer.liveness import IsGone
from services.transfer.room import RoomQueue
from services.transfer.store import BlobStore
from tests.support.clock import FakeClock

ONE, TWO, WORKER = Incarnation("one"), Incarnation("two"), WorkerId("worker")
SIZE = 1 << 16


class Processes:
    """Processes that are gone when a test says so."""

    def __init__(self) -> None:
        self.gone: set[int] = set()

    def watch(self, pid: int) -> IsGone:
        return lambda: pid in self.gone


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def store() -> BlobStore:
    return BlobStore(FakeClock())


@pytest.fixture
async def attachments(
    store: BlobStore, processes: Processes, tmp_path: Path
) -> AsyncIterator[Attachments]:
    attachments = Attachments(store, RoomQueue(store), tmp_path, processes.watch)
    yield attachments
    attachments.check_integrity()
    await attachments.close()
    assert os.listdir(tmp_path) == []


async def test_each_incarnation_has_its_own_segment(attachments: Attachments) -> None:
    one = await attachments.attach(WORKER, ONE, 1, SIZE)
    two = await attachments.attach(WORKER, TWO, 2, SIZE)
    assert one.path != two.path
    assert one.path.exists()


async def test_a_segment_goes_with_connection_and_process(
    attachments: Attachments, store: BlobStore, processes: Processes
) -> None:
    segment = await attachments.attach(WORKER, ONE, 1, SIZE)
    processes.gone.add(1)
    attachments.sweep()
    assert segment.path.exists()  # still connected
    attachments.detach(ONE)
    assert not segment.path.exists()
    assert store.spaces == ()


async def test_a_silent_process_keeps_its_segment(
    attachments: Attachments, processes: Processes
) -> None:
    segment = await attachments.attach(WORKER, ONE, 1, SIZE)
    attachments.detach(ONE)
    attachments.sweep()
    assert segment.path.exists()
    processes.gone.add(1)
    attachments.sweep()
    assert not segment.path.exists()


async def test_attaching_again_gives_the_same_segment_and_takes_reservations_back(
    attachments: Attachments, store: BlobStore
) -> None:
    first = await attachments.attach(WORKER, ONE, 1, SIZE)
    store.take(ONE, 100)
    second = await attachments.attach(WORKER, ONE, 1, SIZE)
    assert second == first
    assert store.space(ONE).reserved == {}
    attachments.detach(ONE)
    attachments.check_integrity()


async def test_another_process_is_not_the_same_incarnation(attachments: Attachments) -> None:
    await attachments.attach(WORKER, ONE, 1, SIZE)
    with pytest.raises(errors.InvalidRequest):
        await attachments.attach(WORKER, ONE, 2, SIZE)


async def test_too_little_memory_counts_nothing_and_may_be_tried_again(
    attachments: Attachments, store: BlobStore
) -> None:
    with pytest.raises(errors.Exhausted):
        await attachments.attach(WORKER, ONE, 1, 1 << 60)
    assert store.spaces == ()
    await attachments.attach(WORKER, ONE, 1, SIZE)


async def test_a_segment_asked_for_by_one_who_gave_up_is_there_when_he_asks_again(
    attachments: Attachments, store: BlobStore
) -> None:
    asking = asyncio.create_task(attachments.attach(WORKER, ONE, 1, SIZE))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    segment = await attachments.attach(WORKER, ONE, 1, SIZE)
    assert [space.segment_id for space in store.spaces] == [segment.segment_id]


async def test_who_died_while_the_segment_was_made_leaves_none(
    attachments: Attachments, processes: Processes, tmp_path: Path
) -> None:
    asking = asyncio.create_task(attachments.attach(WORKER, ONE, 1, SIZE))
    await asyncio.sleep(0)
    asking.cancel()
    processes.gone.add(1)
    async with asyncio.timeout(5):
        while attachments._members:
            await asyncio.sleep(0.005)
            attachments.sweep()
    assert os.listdir(tmp_path) == []


async def test_a_stopping_service_takes_nobody(attachments: Attachments) -> None:
    attachments.stop()
    async with asyncio.timeout(1):
        await attachments.wait_closing()
    with pytest.raises(errors.Unavailable):
        await attachments.attach(WORKER, ONE, 1, SIZE)
