"""Shared memory between real processes: deaths, restarts, silence, and what remains."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from baton import errors
from baton.naming import LeaseId
from tests.support.transfer import (
    Blobs,
    make_client,
    until,
)
from tests.support.transfer_host import Host
from tests.support.transfer_worker import DATA

LEASE = LeaseId("lease")
SIZE = 4096


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path / "ready")
    yield host
    await host.close()


@pytest.fixture
def doomed(host: Host) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.transfer_worker", host.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "2 1\n"
        yield worker
        worker.kill()


def doomed_blobs() -> Blobs:
    blobs = Blobs(0, 0)
    blobs.data = dict(DATA)
    return blobs


async def test_a_killed_worker_leaves_nothing(host: Host, doomed: subprocess.Popen[str]) -> None:
    reader = await host.client()
    blobs = doomed_blobs()
    assert await blobs.fetch(reader, LEASE) == set(blobs.names)
    assert (await host.status()).reservations == 1
    doomed.kill()  # and not waited for: a zombie is dead enough
    await until(lambda: len(host.segments) == 1, 2.0)
    status = await host.status()
    assert (status.reservations, status.blobs, status.leased_blobs) == (0, 0, 0)
    assert [segment.worker_id for segment in status.segments] != ["doomed"]
    assert await blobs.fetch(reader, LEASE) == frozenset()
    await until(lambda: mapped(host.directory) == 1, 5.0)  # the reader let go of it, too


async def test_a_stopped_worker_keeps_its_segment(
    host: Host, doomed: subprocess.Popen[str]
) -> None:
    doomed.send_signal(signal.SIGSTOP)
    reader = await host.client()
    await asyncio.sleep(0.5)
    blobs = doomed_blobs()
    assert await blobs.fetch(reader, LEASE) == set(blobs.names)


async def test_a_silent_service_costs_no_more_than_the_deadline(host: Host) -> None:
    client = await host.client()
    blobs, more = Blobs(3, SIZE), Blobs(3, SIZE)
    await client.publish(blobs.outgoing(), LEASE, 5.0)
    host.service.signal(signal.SIGSTOP)
    for call in (client.publish(more.outgoing(), LEASE, 0.3), blobs.fetch(client, LEASE, 0.3)):
        began = time.monotonic()
        assert await call == frozenset()
        assert time.monotonic() - began < 3
    host.service.signal(signal.SIGCONT)
    assert await more.fetch(client, LEASE) == frozenset()
    assert await client.publish(more.outgoing(), LEASE, 5.0) == set(more.names)
    assert await blobs.fetch(client, LEASE) == set(blobs.names)
    async with asyncio.timeout(5):
        while (await host.status()).reservations:
            await asyncio.sleep(0.02)


async def test_a_service_silent_while_room_is_waited_for_loses_no_reservation(host: Host) -> None:
    client = await host.client()
    full = Blobs(230, SIZE)
    assert len(await client.publish(full.outgoing(), LeaseId("old"), 5.0)) == 230
    publishing = asyncio.create_task(client.publish(Blobs(40, SIZE).outgoing(), LEASE, 1.0))
    await asyncio.sleep(0.1)
    host.service.signal(signal.SIGSTOP)
    assert len(await publishing) <= 25
    await asyncio.sleep(2.0)  # beyond the deadline of the call itself
    host.service.signal(signal.SIGCONT)
    await until(lambda: client.attached, 5.0)
    async with asyncio.timeout(5):
        while (await host.status()).reservations:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("hard", [True, False])
async def test_after_a_restart_publishing_goes_on_in_a_new_segment(host: Host, hard: bool) -> None:
    writer, reader = await host.client(), await host.client()
    blobs = Blobs(3, SIZE)
    await writer.publish(blobs.outgoing(), LEASE, 5.0)
    await blobs.fetch(reader, LEASE)
    old = set(host.segments)
    if hard:
        host.service.kill()
    else:
        assert host.service.terminate() == 0
    began = time.monotonic()
    assert await blobs.fetch(reader, LEASE, 1.0) == frozenset()
    assert await writer.publish(blobs.outgoing(), LEASE, 1.0) == frozenset()
    assert await reader.lookup(blobs.names) == frozenset()
    assert time.monotonic() - began < 10
    host.restart()
    await until(lambda: writer.attached and reader.attached, 10.0)
    assert (len(host.segments), old & set(host.segments)) == (2, set())
    assert await blobs.fetch(reader, LEASE) == frozenset()
    assert await writer.publish(blobs.outgoing(), LEASE, 5.0) == set(blobs.names)
    assert await blobs.fetch(reader, LEASE) == set(blobs.names)
    assert writer.stats.attachments == 2
    await until(lambda: mapped(host.directory) == 3, 5.0)  # nothing of the old is left


async def test_copies_during_a_restart_harm_nothing(host: Host) -> None:
    client = await host.client()
    stop = asyncio.Event()

    async def work(number: int) -> None:
        while not stop.is_set():
            blobs, lease = Blobs(5, SIZE), LeaseId(f"lease-{number}")
            await client.publish(blobs.outgoing(), lease, 0.5)
            await blobs.fetch(client, lease, 0.5)
            await asyncio.sleep(0.001)

    workers = [asyncio.create_task(work(number)) for number in range(4)]
    await asyncio.sleep(0.2)
    host.service.kill()
    host.restart()
    await until(lambda: client.stats.attachments == 2, 10.0)
    fetched = client.stats.fetched_blobs
    await until(lambda: client.stats.fetched_blobs > fetched, 5.0)
    stop.set()
    await asyncio.gather(*workers)
    assert client.stats.corrupt_blobs == 0
    assert (await host.status()).corrupt_blobs == 0


async def test_sigterm_ends_calls_and_removes_segments(host: Host) -> None:
    client = await host.client()
    publishing = asyncio.create_task(
        client.publish(Blobs(300, SIZE).outgoing(), LEASE, 30.0)  # waits for room
    )
    await until(lambda: client.stats.published_blobs > 0)
    await asyncio.sleep(0.2)
    began = time.monotonic()
    assert await asyncio.to_thread(host.service.terminate) == 0
    assert time.monotonic() - began < 8
    assert host.segments == []
    async with asyncio.timeout(5):
        assert 0 < len(await publishing) < 300


async def test_too_little_shared_memory_is_said_at_the_start(host: Host) -> None:
    client = make_client(host.address, segment_bytes=1 << 60)
    with pytest.raises(errors.Exhausted, match=r"needs 1152921504606846976 bytes .* available"):
        await client.start()
    assert not client.attached
    await client.close()


async def test_without_a_service_work_goes_on() -> None:
    client = make_client("127.0.0.1:1")
    began = time.monotonic()
    await client.start(0.2)
    blobs = Blobs(1, SIZE)
    assert await client.publish(blobs.outgoing(), LEASE, 0.2) == frozenset()
    assert await blobs.fetch(client, LEASE, 0.2) == frozenset()
    assert await client.lookup(blobs.names) == frozenset()
    await client.release_lease(LEASE)
    assert time.monotonic() - began < 8
    await client.close()


async def test_a_service_that_comes_late_is_found(host: Host, tmp_path: Path) -> None:
    host.service.terminate()
    client = make_client(host.address)
    host.clients.append(client)
    await client.start(0.1)
    assert not client.attached
    host.restart()
    await until(lambda: client.attached, 10.0)


async def test_nothing_leaks(host: Host) -> None:
    await cycle(host)
    files, maps, tasks = open_files(), mapped(host.directory), len(asyncio.all_tasks())
    for _ in range(5):
        await cycle(host)
    async with asyncio.timeout(5):  # calls that ended leave tasks for a moment
        while len(asyncio.all_tasks()) > tasks:
            await asyncio.sleep(0.01)
    await until(lambda: open_files() <= files, 5.0)
    assert mapped(host.directory) == maps == 0


async def cycle(host: Host) -> None:
    writer, reader = make_client(host.address), make_client(host.address)
    await writer.start()
    await reader.start()
    blobs = Blobs(3, SIZE)
    await writer.publish(blobs.outgoing(), LEASE, 5.0)
    assert len(await blobs.fetch(reader, LEASE)) == 3
    await writer.close()
    await reader.close()
    await reader.close()


def open_files() -> int:
    gc.collect()  # gRPC closes a channel's sockets with its last object
    return len(os.listdir("/proc/self/fd"))


def mapped(directory: Path) -> int:
    """Mappings of segments in this process."""
    return Path("/proc/self/maps").read_text().count(f"{directory}/")
