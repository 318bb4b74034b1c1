"""Exported blocks are published in order while more come, and every one is given back."""

import asyncio

import pytest

from baton.naming import BlobName, LeaseId
from engine.types import BlockRef
from services.worker.publishing import Publication


def block(number: int) -> BlockRef:
    return BlockRef(BlobName(bytes([number]) * 16), 0, number, number, 4)


class Port:
    """Stands for the engine's port: remembers what was given back."""

    def __init__(self):
        self.released = []

    def block_view(self, ref):
        return memoryview(bytes([ref.block]))

    def release_exports(self, blocks):
        self.released.extend(blocks)


class Transfer:
    """Stands for the transfer client: publishes when told to go on."""

    def __init__(self, held=lambda _name: True):
        self.batches = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.copying = False
        self._held = held

    async def publish(self, blobs, lease_id, deadline_s):
        assert lease_id == "lease"
        self.batches.append([bytes(blob.data)[0] for blob in blobs])
        self.copying = True
        try:
            await self.go_on.wait()
        finally:
            await asyncio.sleep(0.01)  # a copy that runs ends, cancelled or not
            self.copying = False
        return frozenset(blob.name for blob in blobs if self._held(blob.name))


def publication(port, transfer, deadline_s=5.0):
    return Publication(
        port, transfer, LeaseId("lease"), deadline_s=deadline_s, seconds_per_token=0.5
    )


async def test_what_is_ready_meanwhile_goes_as_one_batch():
    port, transfer = Port(), Transfer()
    transfer.go_on.clear()
    async with publication(port, transfer) as publishing:
        publishing.add([block(1), block(2)])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        publishing.add([block(3)])
        publishing.add([])
        publishing.add([block(4)])
        assert port.released == []
        transfer.go_on.set()
        await publishing.finish()
        assert transfer.batches == [[1, 2], [3, 4]]
        assert list(publishing.held.values()) == [block(n) for n in (1, 2, 3, 4)]
    assert port.released == [block(n) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("blocks", [[], [block(1)]])
async def test_finishing_waits_no_longer_than_publishing_takes(blocks):
    port, transfer = Port(), Transfer()
    async with publication(port, transfer, deadline_s=60) as publishing:
        publishing.add(blocks)
        await asyncio.wait_for(publishing.finish(), 1)
        assert list(publishing.held.values()) == blocks


async def test_only_what_is_held_counts():
    port, transfer = Port(), Transfer(held=lambda name: name != block(2).name)
    async with publication(port, transfer) as publishing:
        publishing.add([block(1), block(2), block(3)])
        await publishing.finish()
        assert list(publishing.held.values()) == [block(1), block(3)]
    assert len(port.released) == 3


async def test_a_service_that_hangs_is_given_up_at_the_deadline():
    port, transfer = Port(), Transfer()
    async with publication(port, transfer, deadline_s=0.05) as publishing:
        publishing.add([block(1)])
        await asyncio.sleep(0.01)
        transfer.go_on.clear()
        publishing.add([block(2)])
        await asyncio.sleep(0.02)
        publishing.add([block(3)])
        await publishing.finish()
        assert list(publishing.held) == [block(1).name]
        assert not transfer.copying
    assert sorted(ref.block for ref in port.released) == [1, 2, 3]


async def test_leaving_early_waits_for_the_running_copy_and_gives_all_back():
    port, transfer = Port(), Transfer()
    transfer.go_on.clear()

    async def interrupted():
        async with publication(port, transfer) as publishing:
            publishing.add([block(1)])
            await asyncio.sleep(0.01)
            publishing.add([block(2)])
            await asyncio.sleep(10)

    task = asyncio.create_task(interrupted())
    await asyncio.sleep(0.03)
    assert transfer.copying
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not transfer.copying
    assert sorted(ref.block for ref in port.released) == [1, 2]


async def test_a_bug_in_publishing_is_not_swallowed():
    class Broken(Transfer):
        async def publish(self, blobs, lease_id, deadline_s):
            raise ValueError("broken")

    port = Port()
    with pytest.raises(ValueError, match="broken"):
        async with publication(port, Broken()) as publishing:
            publishing.add([block(1)])
            await publishing.finish()
    assert port.released == [block(1)]
