"""What a watcher of the service's names hears, over a real server and store."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from baton.naming import BlobName, Incarnation
from baton.v1 import kv_pb2
from baton.v1 import transfer_pb2 as pb
from services.common import rpc
from services.common.blob_log import Change
from services.transfer import server
from services.transfer.settings import TransferSettings
from tests.support.transfer import stub

A, B = BlobName(b"a" * 16), BlobName(b"b" * 16)


class Service:
    """A transfer service with one attached incarnation, `i`."""

    def __init__(self, running: server.TransferServer, calls: Any) -> None:
        self.running, self.calls = running, calls

    async def attach(self) -> None:
        request = pb.AttachRequest(
            worker_id="w", incarnation="i", pid=os.getpid(), segment_bytes=1 << 16
        )
        self.attached = self.calls.Attach(request)
        await self.attached.read()

    async def hold(self, name: BlobName, lease: str = "") -> pb.Place:
        reserved = await self.calls.Reserve(pb.ReserveRequest(incarnation="i", sizes_bytes=[100]))
        blob = pb.WrittenBlob(name=name, place=reserved.places[0])
        request = pb.CommitRequest(incarnation="i", blobs=[blob], lease_id=lease)
        request.lease_ttl.FromSeconds(5)
        await self.calls.Commit(request)
        place: pb.Place = reserved.places[0]
        return place

    async def release(self, lease: str) -> None:
        await self.calls.ReleaseLease(pb.ReleaseLeaseRequest(lease_id=lease))

    async def segment(self) -> pb.SegmentStatus:
        request = pb.GetTransferStatusRequest(check_integrity=True)
        status: pb.GetTransferStatusResponse = await self.calls.GetTransferStatus(request)
        return status.segments[0]


@pytest.fixture
async def service(tmp_path: Any) -> AsyncIterator[Service]:
    settings = TransferSettings(_cli_parse_args=False, segment_dir=tmp_path)
    running = await server.start(settings)
    async with rpc.channel(running.address) as channel:
        service = Service(running, stub(channel))
        await service.attach()
        yield service
        service.attached.cancel()
    await running.stop()


async def heard(watching: Any) -> Change:
    async with asyncio.timeout(2):
        message = await watching.read()
    assert isinstance(message, kv_pb2.BlobChanges)
    return Change.from_message(message)


async def test_bound_and_discarded_names_are_heard_of(service: Service) -> None:
    await service.hold(A)
    watching = service.calls.WatchBlobs(kv_pb2.WatchBlobsRequest())
    assert await heard(watching) == Change(1, True, (A,), ())
    place = await service.hold(B)
    assert await heard(watching) == Change(2, False, (B,), ())
    await service.calls.Discard(pb.DiscardRequest(name=B, place=place))
    assert await heard(watching) == Change(3, False, (), (B,))
    await service.segment()  # the log is part of the service's integrity


async def test_a_dead_worker_s_names_are_heard_to_be_gone(service: Service) -> None:
    await service.hold(A)
    await service.hold(B)
    watching = service.calls.WatchBlobs(kv_pb2.WatchBlobsRequest())
    await heard(watching)
    service.running.attachments._members[Incarnation("i")].is_gone = lambda: True
    service.attached.cancel()
    assert (await heard(watching)).removed == (A, B)


async def test_evicted_names_are_heard_to_be_gone(service: Service) -> None:
    await service.hold(A)
    watching = service.calls.WatchBlobs(kv_pb2.WatchBlobsRequest())
    await heard(watching)
    sizes = [(1 << 16) - 64]
    answer = await service.calls.Reserve(pb.ReserveRequest(incarnation="i", sizes_bytes=sizes))
    assert len(answer.places) == 1
    assert (await heard(watching)).removed == (A,)


async def test_watching_ends_with_the_service(service: Service) -> None:
    watching = service.calls.WatchBlobs(kv_pb2.WatchBlobsRequest())
    await heard(watching)
    ended = asyncio.create_task(watching.read())
    await asyncio.sleep(0.05)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await service.running.stop()
    assert loop.time() - began < 0.9  # not the whole grace of calls that don't end
    assert not isinstance(await ended, kv_pb2.BlobChanges)


async def test_a_segment_s_leased_blobs_are_counted(service: Service) -> None:
    await service.hold(A, lease="one")
    await service.hold(B)
    assert (await service.segment()).leased_blobs == 1
    acquiring = service.calls.Acquire(pb.AcquireRequest(names=[A, B], lease_id="two"))
    assert len((await acquiring.read()).blobs) == 2
    await service.release("two")
    assert (await service.segment()).leased_blobs == 1
    await service.release("one")
    assert (await service.segment()).leased_blobs == 0


async def test_names_that_are_not_those_bound_break_the_integrity(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.running.names.add(A)
    with pytest.raises(Exception, match="not the names that are bound"):
        await service.segment()
