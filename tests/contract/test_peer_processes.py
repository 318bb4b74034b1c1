"""Two transfer services as processes: one dies, sleeps or restarts while the other reads."""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from baton.naming import BlobName, LeaseId
from baton.v1 import transfer_pb2
from services.common import rpc
from services.common.transfer.client import IncomingBlob, TransferClient
from tests.support.transfer import (
    MIB,
    SILENCE_S,
    Blobs,
    Status,
    TransferProcess,
    make_client,
    params,
    stub,
)

LEASE = LeaseId("lease")
COUNT, SIZE = 32, 4 * MIB


class TwoHosts:
    """An owner and a reader, each with a directory of its own."""

    def __init__(self, transport: str, scratch: Path, silence_s: float = SILENCE_S) -> None:
        self.directories = [
            Path(tempfile.mkdtemp(dir="/dev/shm", prefix="contract-")) for _ in range(2)
        ]
        self._ready = scratch
        self._flags = [f"--peer-transport={transport}", f"--peer-silence-s={silence_s}"]
        self.owner, self.reader = (
            TransferProcess(directory, scratch / f"ready-{index}", flags=self._flags)
            for index, directory in enumerate(self.directories)
        )
        self.clients: list[TransferClient] = []

    async def client(self, process: TransferProcess, segment_bytes: int = MIB) -> TransferClient:
        client = make_client(process.address, segment_bytes)
        self.clients.append(client)
        await client.start()
        return client

    def restart_owner(self) -> None:
        self.owner = TransferProcess(
            self.directories[0], self._ready / "ready-0", self.owner.address, self._flags
        )

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        for process, directory in zip(
            (self.reader, self.owner), self.directories[::-1], strict=True
        ):
            if process.process.poll() is None:
                process.signal(signal.SIGCONT)
                assert process.terminate() == 0
                assert os.listdir(directory) == []
            shutil.rmtree(directory)


async def status_of(process: TransferProcess) -> Status:
    async with rpc.channel(process.address) as channel:
        request = transfer_pb2.GetTransferStatusRequest(check_integrity=True)
        return await stub(channel).GetTransferStatus(request, timeout=5, wait_for_ready=True)


TRANSPORTS = params(["grpc", "nixl"])


@pytest.fixture(params=TRANSPORTS)
async def patient_hosts(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TwoHosts]:
    """They never give each other up."""
    hosts = TwoHosts(request.param, tmp_path, 60.0)
    yield hosts
    await hosts.close()


@pytest.fixture(params=TRANSPORTS)
async def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TwoHosts]:
    hosts = TwoHosts(request.param, tmp_path)
    yield hosts
    await hosts.close()


class Reading:
    """A fetch of much, under way."""

    def __init__(self, hosts: TwoHosts, blobs: Blobs, deadline_s: float) -> None:
        self._hosts, self._blobs, self._deadline_s = hosts, blobs, deadline_s

    async def begin(self) -> None:
        """Returns when the first blob came."""
        reader = await self._hosts.client(self._hosts.reader)
        self._into = {name: bytearray(SIZE) for name in self._blobs.names}
        incoming = [IncomingBlob(name, memoryview(into)) for name, into in self._into.items()]

        def fetch() -> asyncio.Task[frozenset[bytes]]:
            owner = self._hosts.owner.address
            return asyncio.create_task(reader.fetch(incoming, LEASE, self._deadline_s, owner))

        self._task = fetch()
        async with asyncio.timeout(30):
            while not (await status_of(self._hosts.reader)).peer_blobs:
                if self._task.done():  # on a busy machine the first connection may take too long
                    assert not self._task.result()
                    self._task = fetch()

    async def end(self) -> int:
        """How many came, all of them right."""
        filled = await self._task
        assert all(self._into[name] == self._blobs.data[name] for name in filled)
        return len(filled)


async def begin(hosts: TwoHosts, deadline_s: float = 10.0) -> Reading:
    blobs = Blobs(COUNT, SIZE)
    writer = await hosts.client(hosts.owner, COUNT * (SIZE + MIB))
    assert len(await writer.publish(blobs.outgoing(), LEASE, 10.0)) == COUNT
    reading = Reading(hosts, blobs, deadline_s)
    await reading.begin()
    return reading


async def test_an_owner_that_dies_in_mid_read(hosts: TwoHosts) -> None:
    reading = await begin(hosts)
    hosts.owner.kill()
    began = time.monotonic()
    await reading.end()
    assert time.monotonic() - began < 8.0  # of its deadline's 10
    assert (await status_of(hosts.reader)).reservations == 0


async def test_an_owner_that_sleeps_in_mid_read_and_wakes_up_later(hosts: TwoHosts) -> None:
    reading = await begin(hosts)
    hosts.owner.signal(signal.SIGSTOP)
    began = time.monotonic()
    await reading.end()
    assert time.monotonic() - began < 8.0  # of its deadline's 10
    assert (await status_of(hosts.reader)).reservations == 0
    hosts.owner.signal(signal.SIGCONT)
    async with asyncio.timeout(12):  # of the read's own lease
        while (await status_of(hosts.owner)).leases > 1:
            await asyncio.sleep(0.1)


async def test_an_owner_that_sleeps_costs_a_read_once_and_is_found_when_it_wakes(
    hosts: TwoHosts,
) -> None:
    reading = await begin(hosts)
    await reading.end()
    more = Blobs(2, MIB)
    await hosts.clients[0].publish(more.outgoing(), LEASE, 10.0)
    into = {name: bytearray(MIB) for name in more.names}

    async def read() -> frozenset[BlobName]:
        incoming = [IncomingBlob(name, memoryview(buffer)) for name, buffer in into.items()]
        return await hosts.clients[1].fetch(incoming, LEASE, 5.0, hosts.owner.address)

    hosts.owner.signal(signal.SIGSTOP)
    assert await read() == frozenset()
    began = time.monotonic()
    assert await read() == frozenset()
    assert time.monotonic() - began < SILENCE_S * 0.8
    hosts.owner.signal(signal.SIGCONT)
    async with asyncio.timeout(5):
        while await read() != set(more.names):
            await asyncio.sleep(0.05)
    assert into == more.data


async def test_a_deadline_in_mid_read_is_kept(patient_hosts: TwoHosts) -> None:
    hosts = patient_hosts
    reading = await begin(hosts, 3.0)
    hosts.owner.signal(signal.SIGSTOP)
    began = time.monotonic()
    await reading.end()
    assert time.monotonic() - began < 15.0
    async with asyncio.timeout(5):
        while (await status_of(hosts.reader)).reservations:
            await asyncio.sleep(0.02)


async def test_a_reader_that_dies_in_mid_read_leaves_no_lease_at_the_owner(
    hosts: TwoHosts,
) -> None:
    reading = await begin(hosts)
    hosts.reader.kill()
    await reading.end()
    await hosts.clients[0].release_lease(LEASE)
    async with asyncio.timeout(12):
        while (await status_of(hosts.owner)).leases:
            await asyncio.sleep(0.1)


async def test_an_owner_that_restarted_is_read_from_again(hosts: TwoHosts) -> None:
    reading = await begin(hosts)
    await reading.end()
    hosts.owner.kill()
    hosts.restart_owner()
    blobs = Blobs(5, MIB)
    writer = await hosts.client(hosts.owner, 16 * MIB)
    assert len(await writer.publish(blobs.outgoing(), LEASE, 10.0)) == 5
    reader = hosts.clients[1]
    into = {name: bytearray(MIB) for name in blobs.names}
    incoming = [IncomingBlob(name, memoryview(buffer)) for name, buffer in into.items()]
    filled: set[bytes] = set()
    async with asyncio.timeout(10):  # its channel may be in its back-off
        while len(filled) < 5:
            filled |= await reader.fetch(incoming, LEASE, 5.0, hosts.owner.address)
    assert into == blobs.data


async def test_after_reads_both_sides_are_idle(hosts: TwoHosts) -> None:
    """Whatever moves reads on rests when there are none."""
    reading = await begin(hosts)
    assert await reading.end() == COUNT
    for client in hosts.clients:
        await client.release_lease(LEASE)
    async with asyncio.timeout(5):
        while (await status_of(hosts.owner)).leases:
            await asyncio.sleep(0.05)
    processes = [psutil.Process(one.process.pid) for one in (hosts.owner, hosts.reader)]
    before = [sum(process.cpu_times()[:2]) for process in processes]
    await asyncio.sleep(1.0)
    spent = [
        sum(process.cpu_times()[:2]) - old for process, old in zip(processes, before, strict=True)
    ]
    assert max(spent) < 0.3, spent
