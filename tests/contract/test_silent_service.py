"""A transfer service that hangs: it costs a moment once, and nothing is lost for good."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton.naming import LeaseId
from services.common.transfer.client import TransferClient
from tests.support.transfer import Blobs, until
from tests.support.transfer_host import Host

LEASE = LeaseId("lease")
SIZE = 4096


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path / "ready")
    yield host
    await host.close()


async def prompt(client: TransferClient, blobs: Blobs, lease: LeaseId = LEASE) -> float:
    """What a worker does for one prompt; returns the seconds that it took."""
    began = time.monotonic()
    await client.lookup(blobs.names)
    await client.publish(blobs.outgoing(), lease, 5.0)
    await blobs.fetch(client, lease, 5.0)
    return time.monotonic() - began


async def quick(client: TransferClient) -> bool:
    """Whether prompts cost nothing; the best of three, since the machine may be busy."""
    return min([await prompt(client, Blobs(20, SIZE)) for _ in range(3)]) < 0.25


async def works(client: TransferClient, patience_s: float) -> None:
    """Waits until publishing and fetching do."""
    async with asyncio.timeout(patience_s):
        while True:
            blobs = Blobs(3, SIZE)
            published = await client.publish(blobs.outgoing(), LEASE, 1.0)
            if published == await blobs.fetch(client, LEASE, 1.0) == set(blobs.names):
                return
            await asyncio.sleep(0.02)


async def clean(host: Host) -> None:
    async with asyncio.timeout(5):
        while True:
            status = await host.status()
            if not status.reservations and not status.leases:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("hangs_s", [0.3, 2.0])
async def test_a_hung_service_costs_the_first_prompt_little_and_others_nothing(
    host: Host, hangs_s: float
) -> None:
    client = await host.client()
    await prompt(client, Blobs(20, SIZE))
    host.service.signal(signal.SIGSTOP)
    assert await prompt(client, Blobs(20, SIZE)) < 3.0
    assert await quick(client)
    assert client.stats.breaker_opened == 1
    await asyncio.sleep(hangs_s)
    assert await quick(client)
    host.service.signal(signal.SIGCONT)
    await works(client, 6.0)
    assert client.stats.breaker_opened == 1
    await client.release_lease(LEASE)
    await clean(host)


async def test_calls_under_way_end_when_the_service_falls_silent(host: Host) -> None:
    writer, reader = await host.client(), await host.client()
    full = Blobs(230, SIZE)
    assert len(await writer.publish(full.outgoing(), LeaseId("full"), 5.0)) == 230
    waiting = asyncio.create_task(writer.publish(Blobs(40, SIZE).outgoing(), LEASE, 30.0))
    await asyncio.sleep(0.2)
    host.service.signal(signal.SIGSTOP)
    began = time.monotonic()
    assert await full.fetch(reader, LEASE, 30.0) == frozenset()
    assert len(await waiting) < 40
    assert time.monotonic() - began < 8.0
    host.service.signal(signal.SIGCONT)
    await until(lambda: writer.attached, 6.0)
    await writer.release_lease(LeaseId("full"))
    await works(writer, 6.0)
    for client in (writer, reader):
        await client.release_lease(LEASE)
    await clean(host)


async def test_a_lease_that_ends_meanwhile_is_released_afterwards(host: Host) -> None:
    client = await host.client()
    blobs = Blobs(3, SIZE)
    await client.publish(blobs.outgoing(), LEASE, 5.0)
    host.service.signal(signal.SIGSTOP)
    began = time.monotonic()
    await client.release_lease(LEASE)
    await client.release_lease(LeaseId("another"))
    assert time.monotonic() - began < 4.0
    host.service.signal(signal.SIGCONT)
    began = time.monotonic()
    async with asyncio.timeout(3):  # half of the lease's time
        while (await host.status()).leases:
            await asyncio.sleep(0.02)
    assert (await host.status()).expired_leases == 0


async def test_a_restarted_service_is_used_as_soon_as_it_is_there(host: Host) -> None:
    client = await host.client()
    host.service.kill()
    assert await prompt(client, Blobs(3, SIZE)) < 3.0
    assert await quick(client)
    host.restart()
    await works(client, 6.0)


async def test_an_owner_waits_until_nobody_reads_from_its_segment(host: Host) -> None:
    owner, other = await host.client(), await host.client()
    blobs = Blobs(3, SIZE)
    assert await owner.leased_blobs() == 0
    await owner.publish(blobs.outgoing(), LEASE, 5.0)
    assert (await owner.leased_blobs(), await other.leased_blobs()) == (3, 0)
    assert await other.wait_unleased(1.0)
    began = time.monotonic()
    assert not await owner.wait_unleased(0.3)
    assert 0.3 <= time.monotonic() - began < 3.0
    waiting = asyncio.create_task(owner.wait_unleased(5.0))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await other.release_lease(LEASE)
    async with asyncio.timeout(3):
        assert await waiting


@pytest.mark.parametrize("signal_", [signal.SIGSTOP, signal.SIGKILL])
async def test_an_owner_waits_for_no_service_that_stays_away(
    host: Host, signal_: signal.Signals
) -> None:
    owner = await host.client()
    await owner.publish(Blobs(3, SIZE).outgoing(), LEASE, 5.0)
    host.service.signal(signal_)
    began = time.monotonic()
    assert await owner.wait_unleased(30.0)
    assert 0.9 < time.monotonic() - began < 10.0
    assert await owner.leased_blobs() is None
    if signal_ is signal.SIGKILL:
        host.service.process.wait(5)


async def test_an_owner_waits_through_a_blip(host: Host) -> None:
    owner = await host.client()
    await owner.publish(Blobs(3, SIZE).outgoing(), LEASE, 5.0)
    host.service.signal(signal.SIGSTOP)
    waiting = asyncio.create_task(owner.wait_unleased(30.0))
    await asyncio.sleep(0.6)
    host.service.signal(signal.SIGCONT)
    await asyncio.sleep(1.0)
    assert not waiting.done()
    await owner.release_lease(LEASE)
    async with asyncio.timeout(5):
        assert await waiting
