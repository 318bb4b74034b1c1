"""The wire: what is refused and how, over a real server."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from baton import errors
from baton.naming import Incarnation
from baton.v1 import transfer_pb2 as pb
from services.common import rpc
from services.transfer import server
from services.transfer.peers import nixl
from services.transfer.settings import TransferSettings
from tests.support.transfer import stub

NAME = b"n" * 16
SECOND = Duration(seconds=1)


@pytest.fixture
async def calls(tmp_path: Any) -> AsyncIterator[Any]:
    settings = TransferSettings(_cli_parse_args=False, segment_dir=tmp_path)
    running = await server.start(settings)
    async with rpc.channel(running.address) as channel:
        yield stub(channel)
    await running.stop()


@pytest.fixture
async def place(calls: Any) -> AsyncIterator[pb.Place]:
    """A reserved place of incarnation `i`, which is attached."""
    attached = calls.Attach(
        pb.AttachRequest(worker_id="w", incarnation="i", pid=os.getpid(), segment_bytes=1 << 16)
    )
    await attached.read()
    answer = await calls.Reserve(pb.ReserveRequest(incarnation="i", sizes_bytes=[100]))
    yield answer.places[0]
    attached.cancel()


async def test_it_is_ready_until_it_is_told_to_stop(tmp_path: Any) -> None:
    settings = TransferSettings(_cli_parse_args=False, segment_dir=tmp_path)
    running = await server.start(settings)
    process = running.metrics.health
    assert (process.ready, process.problem) == (True, "")
    stopping = asyncio.create_task(running.stop())
    await asyncio.sleep(0)
    assert not process.ready
    await stopping


async def refusal(call: Callable[[], Awaitable[Any]]) -> errors.BatonError:
    with pytest.raises(grpc.RpcError) as caught:
        await call()
    return errors.from_rpc_error(caught.value)


BAD: list[tuple[str, Any, str]] = [
    ("Lookup", pb.LookupRequest(names=[NAME, b"short"]), "names[1]"),
    ("Lookup", pb.LookupRequest(names=[NAME] * 70_000), "names"),
    ("Reserve", pb.ReserveRequest(sizes_bytes=[1]), "incarnation"),
    ("Reserve", pb.ReserveRequest(incarnation="i", sizes_bytes=[1, 0]), "sizes_bytes[1]"),
    ("Reserve", pb.ReserveRequest(incarnation="i", wait=Duration(seconds=-1)), "wait"),
    ("Commit", pb.CommitRequest(incarnation="i", blobs=[pb.WrittenBlob()]), "blobs[0].name"),
    ("Commit", pb.CommitRequest(incarnation="i", lease_ttl=Duration(seconds=10**9)), "lease_ttl"),
    ("Discard", pb.DiscardRequest(name=b""), "name"),
    ("DescribeNixl", pb.DescribeNixlRequest(names=[b"short"]), "names[0]"),
    ("RenewLease", pb.RenewLeaseRequest(), "lease_id"),
    ("ReleaseLease", pb.ReleaseLeaseRequest(lease_id="x" * 1000), "lease_id"),
    ("Abandon", pb.AbandonRequest(), "incarnation"),
]


@pytest.mark.parametrize(("method", "request_", "field"), BAD)
async def test_bad_requests_name_the_field(
    calls: Any, method: str, request_: Any, field: str
) -> None:
    error = await refusal(lambda: getattr(calls, method)(request_))
    assert isinstance(error, errors.InvalidRequest)
    assert error.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [({"segment_bytes": 0}, "segment_bytes"), ({"worker_id": ""}, "worker_id")],
)
async def test_bad_attachments_name_the_field(
    calls: Any, change: dict[str, Any], field: str
) -> None:
    fields = {"worker_id": "w", "incarnation": "i", "pid": os.getpid(), "segment_bytes": 4096}
    error = await refusal(calls.Attach(pb.AttachRequest(**{**fields, **change})).read)
    assert error.field == field


async def test_a_process_out_of_sight_is_refused(calls: Any) -> None:
    request = pb.AttachRequest(worker_id="w", incarnation="i", pid=0, segment_bytes=4096)
    error = await refusal(calls.Attach(request).read)
    assert (type(error), error.reason) == (errors.LayoutMismatch, "PROCESS_NOT_VISIBLE")


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Acquire", pb.AcquireRequest(names=[NAME], source_address="x" * 1000), "source_address"),
        ("ReadBlobs", pb.ReadBlobsRequest(names=[NAME, b""]), "names[1]"),
    ],
)
async def test_bad_streams_name_the_field(
    calls: Any, method: str, request_: Any, field: str
) -> None:
    error = await refusal(getattr(calls, method)(request_).read)
    assert isinstance(error, errors.InvalidRequest)
    assert error.field == field


async def test_blobs_that_are_not_held_are_absent_from_a_stream(calls: Any) -> None:
    answers = [answer async for answer in calls.ReadBlobs(pb.ReadBlobsRequest(names=[NAME] * 2))]
    assert answers == [pb.ReadBlobsResponse(name=NAME)]


async def test_without_nixl_nobody_is_told_how_to_read_by_it(tmp_path: Any) -> None:
    settings = TransferSettings(_cli_parse_args=False, segment_dir=tmp_path, peer_transport="grpc")
    running = await server.start(settings)
    async with rpc.channel(running.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            await stub(channel).DescribeNixl(pb.DescribeNixlRequest(names=[NAME]))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await running.stop()


async def test_nixl_that_is_demanded_and_not_installed_is_said_at_the_start(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl, "module_name", lambda: None)
    settings = TransferSettings(_cli_parse_args=False, segment_dir=tmp_path, peer_transport="nixl")
    with pytest.raises(OSError, match="pip install"):
        await server.start(settings)


async def test_who_is_not_attached_can_reserve_and_commit_nothing(calls: Any) -> None:
    blob = pb.WrittenBlob(name=NAME)
    for call in (
        lambda: calls.Reserve(pb.ReserveRequest(incarnation="stranger", sizes_bytes=[1])),
        lambda: calls.Commit(pb.CommitRequest(incarnation="stranger", blobs=[blob])),
    ):
        error = await refusal(call)
        assert (type(error), error.reason) == (errors.LayoutMismatch, "NOT_ATTACHED")


async def test_a_place_is_committed_once(calls: Any, place: pb.Place) -> None:
    request = pb.CommitRequest(
        incarnation="i", blobs=[pb.WrittenBlob(name=NAME, place=place)], lease_id="l",
        lease_ttl=SECOND,
    )  # fmt: skip
    assert (await calls.Commit(request)).bound == [True]
    assert (await refusal(lambda: calls.Commit(request))).reason == "NOT_RESERVED"
    await calls.Abandon(pb.AbandonRequest(incarnation="i", places=[place]))  # changes nothing
    assert (await calls.Lookup(pb.LookupRequest(names=[NAME]))).held == [True]


async def test_leases_over_the_wire(calls: Any, place: pb.Place) -> None:
    renew = pb.RenewLeaseRequest(lease_id="l", lease_ttl=SECOND)
    assert isinstance(await refusal(lambda: calls.RenewLease(renew)), errors.NotFound)
    blob = pb.WrittenBlob(name=NAME, place=place)
    await calls.Commit(
        pb.CommitRequest(incarnation="i", blobs=[blob], lease_id="l", lease_ttl=SECOND)
    )
    await calls.RenewLease(renew)
    await calls.ReleaseLease(pb.ReleaseLeaseRequest(lease_id="l"))
    await calls.ReleaseLease(pb.ReleaseLeaseRequest(lease_id="l"))
    assert isinstance(await refusal(lambda: calls.RenewLease(renew)), errors.NotFound)


async def test_status_tells_what_is_held(calls: Any, place: pb.Place) -> None:
    status = await calls.GetTransferStatus(pb.GetTransferStatusRequest(check_integrity=True))
    assert status.pid == os.getpid()
    (segment,) = status.segments
    assert (segment.worker_id, segment.incarnation) == ("w", "i")
    assert (segment.size_bytes, segment.used_bytes, status.reservations) == (1 << 16, 192, 1)


async def test_a_broken_invariant_is_an_internal_error_that_names_it(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings = TransferSettings(_cli_parse_args=False, segment_dir=tmp_path)
    running = await server.start(settings)
    running.attachments._store.add_space(Incarnation("x"), "w", "s", "/s", 64)  # type: ignore[arg-type]
    async with rpc.channel(running.address) as channel:
        request = pb.GetTransferStatusRequest(check_integrity=True)
        error = await refusal(lambda: stub(channel).GetTransferStatus(request))
    assert isinstance(error, errors.InternalError)
    assert "members and spaces differ" in error.message
    await running.stop()


async def test_a_missing_segment_directory_is_said_at_the_start(tmp_path: Any) -> None:
    settings = TransferSettings(_cli_parse_args=False, segment_dir=tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="is no directory"):
        await server.start(settings)


@pytest.mark.parametrize("flag", ["address", "metrics_address"])
async def test_an_address_that_is_taken_is_said(flag: str, tmp_path: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        settings = TransferSettings(_cli_parse_args=False, segment_dir=tmp_path, **{flag: taken})
        with pytest.raises(OSError, match=r"taken|in use"):
            await server.start(settings)
