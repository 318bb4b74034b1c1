"""What every transfer backend must do with blobs."""

import asyncio
import time

import pytest

from baton.naming import BlobName, LeaseId
from services.common.transfer.client import IncomingBlob, OutgoingBlob
from services.common.transfer.place import extent_bytes
from tests.support.transfer import MIB, Blobs, ShmBackend, TransferBackend, settled

SIZE = 4096
EIGHT = 8 * extent_bytes(SIZE)
"""A segment for just eight blobs of SIZE."""
SECONDS = 5.0


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096, 100_003])
async def test_what_is_fetched_equals_what_was_published(
    backend: TransferBackend, lease: LeaseId, size: int
) -> None:
    writer, reader = await backend.client(), await backend.reader()
    blobs = Blobs(4, size)
    assert await writer.publish(blobs.outgoing(), lease, SECONDS) == set(blobs.names)
    assert await blobs.fetch(reader, lease) == set(blobs.names)
    assert await blobs.fetch(writer, lease) == set(blobs.names)  # its own, too
    assert (writer.stats.published_blobs, writer.stats.published_bytes) == (4, 4 * size)
    assert (reader.stats.fetched_blobs, reader.stats.fetched_bytes) == (4, 4 * size)


async def test_more_blobs_than_a_message_holds(backend: TransferBackend, lease: LeaseId) -> None:
    writer, reader = await backend.client(4 * MIB), await backend.reader()
    blobs = Blobs(300, 1000)
    assert await writer.publish(blobs.outgoing(), lease, SECONDS) == set(blobs.names)
    assert await blobs.fetch(reader, lease) == set(blobs.names)
    status = await backend.status()
    assert (status.blobs, status.leased_blobs, status.committed_blobs) == (300, 300, 300)


async def test_what_nobody_published_is_not_there(backend: TransferBackend, lease: LeaseId) -> None:
    client, reader = await backend.client(), await backend.reader()
    held, missing = Blobs(2, SIZE), Blobs(2, SIZE)
    await client.publish(held.outgoing(), lease, SECONDS)
    assert await client.lookup([*missing.names, *held.names]) == set(held.names)
    held.data |= missing.data
    assert len(await held.fetch(reader, lease)) == 2
    assert (await backend.status()).missed_names == 2


async def test_nothing_wanted_is_nothing_done(backend: TransferBackend, lease: LeaseId) -> None:
    client = await backend.reader()
    assert await client.publish([], lease, SECONDS) == frozenset()
    assert await client.fetch([], lease, SECONDS) == frozenset()
    assert await client.lookup([]) == frozenset()


async def test_a_name_is_bound_once_and_the_first_stays(host: ShmBackend, lease: LeaseId) -> None:
    first, second = await host.client(), await host.client()
    blobs = Blobs(3, SIZE)
    await first.publish(blobs.outgoing(), lease, SECONDS)
    others = [OutgoingBlob(name, memoryview(bytes(SIZE)), 0.1) for name in blobs.names]
    assert await second.publish(others, lease, SECONDS) == set(blobs.names)
    assert (second.stats.published_blobs, second.stats.shared_blobs) == (0, 3)
    assert await blobs.fetch(second, lease) == set(blobs.names)


async def test_concurrent_publishers_of_the_same_names(host: ShmBackend, lease: LeaseId) -> None:
    clients = [await host.client() for _ in range(3)]
    blobs = Blobs(40, SIZE)
    answers = await asyncio.gather(
        *(client.publish(blobs.outgoing(), lease, SECONDS) for client in clients)
    )
    assert all(answer == set(blobs.names) for answer in answers)
    status = await host.status()
    assert status.blobs == status.committed_blobs == 40
    assert sum(client.stats.published_blobs for client in clients) == 40
    assert sum(client.stats.shared_blobs for client in clients) == 80
    assert await blobs.fetch(clients[0], lease) == set(blobs.names)


async def test_one_publication_may_name_a_blob_twice(host: ShmBackend, lease: LeaseId) -> None:
    client = await host.client()
    blobs = Blobs(1, SIZE)
    twice = blobs.outgoing() * 2
    assert await client.publish(twice, lease, SECONDS) == set(blobs.names)
    assert client.stats.published_blobs == 1


async def test_publishing_again_leases_what_is_held(host: ShmBackend) -> None:
    client = await host.client(EIGHT)
    old, new = Blobs(8, SIZE), Blobs(1, SIZE)
    await client.publish(old.outgoing(), LeaseId("first"), SECONDS)
    await client.release_lease(LeaseId("first"))
    assert await client.publish(old.outgoing(), LeaseId("second"), SECONDS) == set(old.names)
    assert await client.publish(new.outgoing(), LeaseId("third"), 0.2) == frozenset()
    assert await client.lookup(old.names) == set(old.names)


async def test_leased_blobs_are_never_evicted(host: ShmBackend, lease: LeaseId) -> None:
    writer, reader = await host.client(EIGHT), await host.client()
    leased, other = Blobs(8, SIZE), Blobs(2, SIZE)
    await writer.publish(leased.outgoing(), lease, SECONDS)
    assert await writer.publish(other.outgoing(), LeaseId("other"), 0.2) == frozenset()
    assert await leased.fetch(reader, LeaseId("reader")) == set(leased.names)
    await writer.release_lease(lease)
    assert await writer.publish(other.outgoing(), LeaseId("other"), 0.2) == frozenset()
    await writer.release_lease(LeaseId("reader"))
    assert await writer.publish(other.outgoing(), LeaseId("other"), 0.2) == set(other.names)
    assert (await host.status()).evicted_blobs == 2


async def test_a_lease_expires_and_its_blobs_become_cache(host: ShmBackend, lease: LeaseId) -> None:
    client = await host.client(EIGHT, lease_ttl_s=0.3)
    blobs, other = Blobs(8, SIZE), Blobs(1, SIZE)
    await client.publish(blobs.outgoing(), lease, SECONDS)
    assert (await host.status()).leases == 1
    await asyncio.sleep(0.4)
    status = await host.status()
    assert (status.leases, status.leased_blobs, status.expired_leases) == (0, 0, 1)
    assert await client.lookup(blobs.names) == set(blobs.names)
    assert await client.publish(other.outgoing(), lease, SECONDS) == set(other.names)


async def test_eviction_under_pressure_keeps_the_newest(host: ShmBackend) -> None:
    client = await host.client(EIGHT)
    rounds = [Blobs(4, SIZE) for _ in range(6)]
    for number, blobs in enumerate(rounds):
        lease = LeaseId(f"round-{number}")
        assert await client.publish(blobs.outgoing(), lease, SECONDS) == set(blobs.names)
        await client.release_lease(lease)
    held = [len(await client.lookup(blobs.names)) for blobs in rounds]
    assert held == [0, 0, 0, 0, 4, 4]
    status = await host.status()
    assert (status.evicted_blobs, status.blobs) == (16, 8)


async def test_a_full_store_takes_fewer_in_order_after_a_bounded_wait(
    host: ShmBackend, lease: LeaseId
) -> None:
    client = await host.client(EIGHT)
    blobs = Blobs(12, SIZE)
    began = time.monotonic()
    assert await client.publish(blobs.outgoing(), lease, 0.6) == set(blobs.names[:8])
    assert 0.3 < time.monotonic() - began < 3.0
    await settled(host)


async def test_waiting_for_room_ends_when_a_lease_does(host: ShmBackend) -> None:
    client = await host.client(EIGHT)
    old, new = Blobs(8, SIZE), Blobs(8, SIZE)
    await client.publish(old.outgoing(), LeaseId("old"), SECONDS)
    publishing = asyncio.create_task(client.publish(new.outgoing(), LeaseId("new"), SECONDS))
    await asyncio.sleep(0.1)
    assert not publishing.done()
    await client.release_lease(LeaseId("old"))
    assert await publishing == set(new.names)


async def test_a_blob_larger_than_the_segment_is_refused_at_once(
    host: ShmBackend, lease: LeaseId
) -> None:
    client = await host.client(EIGHT)
    async with asyncio.timeout(1):
        assert await client.publish(Blobs(1, EIGHT).outgoing(), lease, 30.0) == frozenset()


async def test_a_corrupted_blob_is_never_served_and_can_be_published_anew(
    host: ShmBackend, lease: LeaseId
) -> None:
    writer, reader = await host.client(), await host.client()
    blobs = Blobs(5, SIZE)
    await writer.publish(blobs.outgoing(), lease, SECONDS)
    await host.corrupt(blobs.names[2])
    assert await blobs.fetch(reader, lease) == set(blobs.names) - {blobs.names[2]}
    assert reader.stats.corrupt_blobs == 1
    assert (await host.status()).corrupt_blobs == 1
    assert await reader.lookup(blobs.names) == set(blobs.names) - {blobs.names[2]}
    await reader.publish(blobs.outgoing(), lease, SECONDS)
    assert await blobs.fetch(writer, lease) == set(blobs.names)


async def test_a_stale_place_is_never_served(host: ShmBackend, lease: LeaseId) -> None:
    writer, reader = await host.client(), await host.client()
    blobs = Blobs(3, SIZE)
    await writer.publish(blobs.outgoing(), lease, SECONDS)
    await host.make_stale(blobs.names[1])
    assert await blobs.fetch(reader, lease) == {blobs.names[0], blobs.names[2]}
    assert (reader.stats.stale_blobs, reader.stats.corrupt_blobs) == (1, 0)
    await writer.publish(blobs.outgoing(), lease, SECONDS)
    assert await blobs.fetch(reader, lease) == set(blobs.names)


@pytest.mark.parametrize("damage", ["corrupt", "make_stale"])
async def test_a_damaged_blob_is_never_served_and_is_forgotten_where_it_is(
    backend: TransferBackend, lease: LeaseId, damage: str
) -> None:
    writer, reader = await backend.client(), await backend.reader()
    blobs = Blobs(5, SIZE)
    await writer.publish(blobs.outgoing(), lease, SECONDS)
    await getattr(backend, damage)(blobs.names[2])
    right = set(blobs.names) - {blobs.names[2]}
    assert await blobs.fetch(reader, lease) == right
    async with asyncio.timeout(2):
        while (await backend.status()).corrupt_blobs != 1:
            await asyncio.sleep(0.02)
    assert await writer.lookup(blobs.names) == right
    await writer.publish(blobs.outgoing(), lease, SECONDS)
    assert await blobs.fetch(reader, lease) == set(blobs.names)


async def test_readers_of_blobs_that_are_being_evicted_get_right_bytes_or_none(
    backend: TransferBackend,
) -> None:
    writer, reader = await backend.client(EIGHT), await backend.reader()
    rounds = [Blobs(8, SIZE) for _ in range(12)]

    async def read(blobs: Blobs) -> None:
        await blobs.fetch(reader, LeaseId(""))  # unprotected: raced by the writer on purpose

    for number, blobs in enumerate(rounds):
        lease = LeaseId(f"round-{number}")
        await asyncio.gather(
            writer.publish(blobs.outgoing(), lease, SECONDS),
            *(read(earlier) for earlier in rounds[max(0, number - 1) : number + 1]),
        )
        await writer.release_lease(lease)
    assert reader.stats.corrupt_blobs == 0


async def test_a_late_publication_does_not_bring_an_ended_lease_back(
    host: ShmBackend, lease: LeaseId
) -> None:
    client = await host.client()
    blobs = Blobs(2, SIZE)
    await client.release_lease(lease)
    assert await client.publish(blobs.outgoing(), lease, SECONDS) == set(blobs.names)
    assert await blobs.fetch(client, lease) == set(blobs.names)
    status = await host.status()
    assert (status.leases, status.leased_blobs, status.blobs) == (0, 0, 2)


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.04])
async def test_a_cancelled_publication_leaves_nothing_behind(
    host: ShmBackend, lease: LeaseId, delay: float
) -> None:
    client = await host.client(64 * MIB)
    sources = [bytearray(MIB) for _ in range(48)]
    names = [BlobName(bytes([number]) * 16) for number in range(48)]
    blobs = [OutgoingBlob(n, memoryview(s), 0.1) for n, s in zip(names, sources, strict=True)]
    publishing = asyncio.create_task(client.publish(blobs, lease, SECONDS))
    await asyncio.sleep(delay)
    publishing.cancel()
    await asyncio.wait([publishing])
    for source in sources:  # the memory is ours again: reusing it must hurt nobody
        source[:] = b"\xff" * MIB
    await settled(host, 1.0)
    held = Blobs(0, 0)
    held.data = {name: bytes(MIB) for name in await client.lookup(names)}
    assert await held.fetch(client, lease) == held.data.keys()
    assert client.stats.corrupt_blobs == 0


async def test_a_cancelled_wait_for_room_takes_nothing(host: ShmBackend) -> None:
    client = await host.client(EIGHT)
    await client.publish(Blobs(7, SIZE).outgoing(), LeaseId("old"), SECONDS)
    waiting = [
        asyncio.create_task(client.publish(Blobs(2, SIZE).outgoing(), LeaseId("new"), 30.0))
        for _ in range(5)
    ]
    await asyncio.sleep(0.1)
    for task in waiting:
        task.cancel()
    async with asyncio.timeout(1):
        await asyncio.wait(waiting)
    await settled(host, 1.0)
    await client.release_lease(LeaseId("new"))  # one blob may have been published before
    one = Blobs(1, SIZE)
    assert await client.publish(one.outgoing(), LeaseId("next"), SECONDS) == set(one.names)


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.006, 0.015])
async def test_a_cancelled_fetch_writes_no_more(
    backend: TransferBackend, lease: LeaseId, delay: float
) -> None:
    writer, reader = await backend.client(64 * MIB), await backend.reader()
    names = [BlobName(bytes([number]) * 16) for number in range(48)]
    await writer.publish(
        [OutgoingBlob(name, memoryview(bytes(MIB)), 0.1) for name in names], lease, SECONDS
    )
    buffers = [bytearray(MIB) for _ in names]
    incoming = [
        IncomingBlob(name, memoryview(into)) for name, into in zip(names, buffers, strict=True)
    ]
    fetching = asyncio.create_task(reader.fetch(incoming, lease, SECONDS))
    await asyncio.sleep(delay)
    fetching.cancel()
    began = time.monotonic()
    await asyncio.wait([fetching])
    assert time.monotonic() - began < 2.0
    for into in buffers:  # the memory is ours again
        into[:] = b"\xff" * MIB
    await asyncio.sleep(0.01)
    assert all(into.count(0xFF) == MIB for into in buffers)
    await writer.release_lease(lease)
    await reader.release_lease(lease)
    async with asyncio.timeout(2):
        while any(status.leases for status in await backend.statuses()):
            await asyncio.sleep(0.02)
