"""Transfer backends for the contract suite, and transfer services as processes.

A backend is whatever moves blobs between workers: the suite asks it for clients, looks at its
state, and damages it. To run the suite over another one, write a class like `ShmBackend` and
add it to `BACKENDS`. NIXL may crash a process at its exit: it runs in processes of its own,
never in the tests'.
"""

import asyncio
import mmap
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import grpc
import pytest
from _pytest.mark.structures import ParameterSet

from baton.naming import BlobName, Incarnation, LeaseId, WorkerId, new_id
from baton.v1 import transfer_pb2, transfer_pb2_grpc
from services.common import rpc
from services.common.transfer.calls import TransferCalls
from services.common.transfer.client import IncomingBlob, OutgoingBlob, TransferClient
from services.common.transfer.place import HEADER_BYTES, Place
from services.transfer import server
from services.transfer.peers import nixl
from services.transfer.peers.host import WrapReader, plain
from services.transfer.settings import TransferSettings
from tests.support import forked

Status = transfer_pb2.GetTransferStatusResponse
LEASE_TTL_S = 6.0
SILENCE_S = 1.0
"""After which a host is given up in tests."""
MIB = 1 << 20


class TransferBackend(Protocol):
    """One host's transfer service, the workers around it, and who reads from it."""

    async def start(self) -> None:
        """Begins to serve."""

    async def client(self, segment_bytes: int = MIB, lease_ttl_s: float = 6.0) -> TransferClient:
        """An attached client of a new worker."""

    async def reader(self) -> TransferClient:
        """One that is to read what those publish: of this host or of another one."""

    async def status(self) -> Status:
        """What the service holds, after it checked its integrity."""

    async def statuses(self) -> list[Status]:
        """The same of all hosts, this one first."""

    async def corrupt(self, name: BlobName) -> None:
        """Flips a byte of a held blob's payload."""

    async def make_stale(self, name: BlobName) -> None:
        """Makes a held blob's place look like one that was reused."""

    def leftovers(self) -> list[str]:
        """What exists on the host because of this backend."""

    async def stop(self) -> None:
        """Closes all clients and the service."""


class ShmBackend:
    """Shared memory on one host; service and workers in this process."""

    def __init__(self, wrap_reader: WrapReader = plain, peer_segment_bytes: int = 64 * MIB) -> None:
        self.directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="contract-"))
        self.address = ""
        self._wrap_reader = wrap_reader
        self._peer_segment_bytes = peer_segment_bytes
        self._clients: list[TransferClient] = []
        self._server: server.TransferServer | None = None

    async def start(self) -> None:
        self.address = await self._serve()
        self._channel = rpc.channel(self.address)
        self._stub = stub(self._channel)
        self._calls = TransferCalls(self._channel, Incarnation("observer"))

    async def client(
        self, segment_bytes: int = MIB, lease_ttl_s: float = LEASE_TTL_S
    ) -> TransferClient:
        return await self.add(make_client(self.address, segment_bytes, lease_ttl_s))

    async def add(self, client: TransferClient) -> TransferClient:
        """Starts a client; it is closed with all others."""
        self._clients.append(client)
        await client.start()
        assert client.attached
        return client

    async def reader(self) -> TransferClient:
        return await self.client()

    async def _serve(self) -> str:
        settings = TransferSettings(
            _cli_parse_args=False,
            segment_dir=self.directory,
            sweep_period_s=0.02,
            peer_transport="grpc",
            peer_silence_s=SILENCE_S,
            peer_segment_bytes=self._peer_segment_bytes,
        )
        self._server = await server.start(settings, self._wrap_reader)
        return self._server.address

    async def _end(self) -> None:
        if self._server is not None:
            await self._server.stop()

    async def statuses(self) -> list[Status]:
        return [await self.status()]

    async def status(self) -> Status:
        request = transfer_pb2.GetTransferStatusRequest(check_integrity=True)
        return await self._stub.GetTransferStatus(request, timeout=5)

    async def corrupt(self, name: BlobName) -> None:
        place, path = await self._where(name)
        position = place.offset + HEADER_BYTES + place.size // 2
        patch(path, position, lambda byte: byte ^ 1)

    async def make_stale(self, name: BlobName) -> None:
        place, path = await self._where(name)
        patch(path, place.offset + 3, lambda byte: byte ^ 1)

    async def _where(self, name: BlobName) -> tuple[Place, str]:
        async for answer in self._calls.acquire([name], LeaseId(""), 0, 5):
            for _, stored in answer.blobs:
                return stored.place, stored.segment_path
        raise AssertionError("not held")

    def leftovers(self) -> list[str]:
        return os.listdir(self.directory) if self.directory.exists() else []

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        if self.address:
            await self._channel.close()
        await self._end()
        left = self.leftovers()
        shutil.rmtree(self.directory)
        assert left == []


class ProcessBackend(ShmBackend):
    """The same with the service in a process of its own, reading from others by NIXL alone."""

    async def _serve(self) -> str:
        ready = self.directory.with_suffix(".ready")
        flags = ["--peer-transport=nixl", f"--peer-silence-s={SILENCE_S}"]
        flags += [f"--peer-segment-bytes={self._peer_segment_bytes}"]
        self._process = TransferProcess(self.directory, ready, flags=flags)
        ready.unlink()
        return self._process.address

    async def _end(self) -> None:
        if self.address:
            assert await asyncio.to_thread(self._process.terminate) == 0


class PeerClient(TransferClient):
    """One that reads from a certain other host, unless it is told another one."""

    source = ""

    async def fetch(
        self,
        blobs: Sequence[IncomingBlob],
        lease_id: LeaseId,
        deadline_s: float,
        source_address: str = "",
    ) -> frozenset[BlobName]:
        return await super().fetch(blobs, lease_id, deadline_s, source_address or self.source)


class PeerBackend:
    """Two hosts: workers publish on one, and readers are on the other."""

    def __init__(self, owner: ShmBackend, other: ShmBackend) -> None:
        self.owner, self.other = owner, other
        self.client, self.status = owner.client, owner.status
        self.corrupt, self.make_stale = owner.corrupt, owner.make_stale

    async def start(self) -> None:
        await self.owner.start()
        await self.other.start()

    async def reader(self) -> TransferClient:
        identity = WorkerId(new_id("worker")), Incarnation(new_id("inc"))
        client = PeerClient(self.other.address, *identity, MIB, lease_ttl_s=LEASE_TTL_S)
        client.source = self.owner.address
        return await self.other.add(client)

    async def statuses(self) -> list[Status]:
        return [await self.owner.status(), await self.other.status()]

    def leftovers(self) -> list[str]:
        return self.owner.leftovers() + self.other.leftovers()

    async def stop(self) -> None:
        await self.other.stop()
        await self.owner.stop()


def peer_grpc() -> PeerBackend:
    return PeerBackend(ShmBackend(), ShmBackend())


def peer_nixl() -> PeerBackend:
    return PeerBackend(ProcessBackend(), ProcessBackend())


PEER_BACKENDS: dict[str, Callable[[], PeerBackend]] = {
    "peer-grpc": peer_grpc,
    "peer-nixl": peer_nixl,
}
BACKENDS: dict[str, Callable[[], TransferBackend]] = {"shm": ShmBackend, **PEER_BACKENDS}
NEEDS_NIXL = pytest.mark.skipif(nixl.module_name() is None, reason="NIXL is not installed")


def params(names: Iterable[str]) -> list[ParameterSet]:
    """Parameters for backends; those that are not installed are skipped."""
    return [pytest.param(name, marks=[NEEDS_NIXL] if "nixl" in name else []) for name in names]


async def settled(backend: TransferBackend, patience_s: float = 2.0) -> None:
    """Waits until nothing is reserved any more."""
    async with asyncio.timeout(patience_s):
        while any(status.reservations for status in await backend.statuses()):
            await asyncio.sleep(0.02)


def make_client(
    address: str, segment_bytes: int = MIB, lease_ttl_s: float = LEASE_TTL_S
) -> TransferClient:
    """A client of a new worker; the caller starts and closes it."""
    return TransferClient(
        address,
        WorkerId(new_id("worker")),
        Incarnation(new_id("inc")),
        segment_bytes,
        lease_ttl_s=lease_ttl_s,
    )


def stub(channel: grpc.aio.Channel) -> "transfer_pb2_grpc.TransferServiceAsyncStub":
    """The service's calls, raw."""
    return transfer_pb2_grpc.TransferServiceStub(channel)


def patch(path: str, position: int, change: Callable[[int], int]) -> None:
    """Changes one byte of a file."""
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        data[position] = change(data[position])


class Blobs:
    """Random blobs, to publish and to compare with."""

    def __init__(self, count: int, size: int) -> None:
        self.data = {BlobName(os.urandom(16)): os.urandom(size) for _ in range(count)}

    @property
    def names(self) -> list[BlobName]:
        return list(self.data)

    def outgoing(self) -> list[OutgoingBlob]:
        return [OutgoingBlob(name, memoryview(data), 0.1) for name, data in self.data.items()]

    async def fetch(
        self, client: TransferClient, lease: LeaseId, deadline_s: float = 5.0
    ) -> frozenset[BlobName]:
        """Fetches all; asserts that what is said to be right is, and returns its names."""
        into = {name: bytearray(len(data)) for name, data in self.data.items()}
        incoming = [IncomingBlob(name, memoryview(buffer)) for name, buffer in into.items()]
        filled = await client.fetch(incoming, lease, deadline_s)
        assert filled <= self.data.keys()
        for name in filled:
            assert into[name] == self.data[name]
        return filled


async def until(condition: Callable[[], bool], patience_s: float = 5.0) -> None:
    """Waits until `condition` holds; TimeoutError where it doesn't in time."""
    async with asyncio.timeout(patience_s):
        while not condition():
            await asyncio.sleep(0.01)


class TransferProcess:
    """A transfer service as a process of its own."""

    def __init__(
        self,
        directory: Path,
        ready: Path,
        address: str = "127.0.0.1:0",
        flags: Sequence[str] = (),
    ) -> None:
        told = ["--address", address, "--segment-dir", str(directory), "--sweep-period-s", "0.05"]
        self.process, self.address = forked.serve("services.transfer", ready, [*told, *flags])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Ends the process the hard way."""
        self.process.kill()
        self.process.wait(10)

    def terminate(self) -> int:
        """Ends the process as an orchestrator does; returns its exit status."""
        self.process.terminate()
        return self.process.wait(10)
