"""The TransferService servicer: checks messages and converts them; protobuf goes no further."""

# ruff: noqa: N802, ARG002 - the methods' names and parameters are gRPC's

import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, cast

import grpc
import psutil

from baton import errors
from baton.naming import BlobName, LeaseId, WorkerId
from baton.v1 import kv_pb2, transfer_pb2, transfer_pb2_grpc
from services.common.blob_log import BlobLog
from services.common.durations import to_duration
from services.common.integrity import ensure
from services.common.telemetry import tracing
from services.common.telemetry.metrics import Metrics
from services.common.transfer.messages import place_from_proto, place_to_proto
from services.common.transfer.place import Checksum, Stored
from services.transfer.attachments import Attachments
from services.transfer.fields import (
    check_length,
    checked_id,
    incarnation_of,
    lease_of,
    name_of,
    names_of,
    seconds_of,
)
from services.transfer.peers.host import Peers
from services.transfer.room import RoomQueue
from services.transfer.store import Blob, BlobStore

Context = grpc.aio.ServicerContext[Any, Any]

BATCH_BLOBS = 64
"""Blobs in one message of Acquire's stream."""
_ANSWER_S = 0.02
"""Of an Acquire's time, what is left for saying what did not come."""


class TransferServicer(transfer_pb2_grpc.TransferServiceServicer):
    """Answers calls; all on one event loop, so that each answer is atomic."""

    def __init__(
        self,
        store: BlobStore,
        names: BlobLog,
        room: RoomQueue,
        attachments: Attachments,
        peers: Peers,
        metrics: Metrics | None = None,
    ) -> None:
        """`names`: those that are bound in `store`; `metrics`: those of this process."""
        self._store = store
        self._names = names
        self._room = room
        self._attachments = attachments
        self._peers = peers
        self._metrics = metrics
        self._process = psutil.Process()

    async def Attach(
        self, request: transfer_pb2.AttachRequest, context: Context
    ) -> AsyncIterator[transfer_pb2.AttachResponse]:
        incarnation = incarnation_of(request.incarnation)
        if not request.segment_bytes:
            raise errors.InvalidRequest("segment_bytes", "must be positive")
        segment = await self._attachments.attach(
            WorkerId(checked_id("worker_id", request.worker_id)),
            incarnation,
            request.pid,
            request.segment_bytes,
        )
        try:
            yield transfer_pb2.AttachResponse(
                segment_path=str(segment.path),
                segment_id=segment.segment_id,
                segment_bytes=segment.size_bytes,
            )
            await self._attachments.wait_closing()
        finally:
            self._attachments.detach(incarnation)

    async def Reserve(
        self, request: transfer_pb2.ReserveRequest, context: Context
    ) -> transfer_pb2.ReserveResponse:
        check_length("sizes_bytes", request.sizes_bytes)
        for index, size in enumerate(request.sizes_bytes):
            if not size:
                raise errors.InvalidRequest(f"sizes_bytes[{index}]", "must be positive")
        wait_s = seconds_of("wait", request.wait) if request.HasField("wait") else 0.0
        places = await self._room.reserve(
            incarnation_of(request.incarnation), request.sizes_bytes, wait_s
        )
        return transfer_pb2.ReserveResponse(places=[place_to_proto(place) for place in places])

    async def Commit(
        self, request: transfer_pb2.CommitRequest, context: Context
    ) -> transfer_pb2.CommitResponse:
        check_length("blobs", request.blobs)
        blobs = [
            Blob(
                name_of(f"blobs[{index}].name", blob.name),
                place_from_proto(blob.place),
                Checksum(blob.checksum),
                seconds_of(f"blobs[{index}].recompute", blob.recompute, at_most=math.inf),
            )
            for index, blob in enumerate(request.blobs)
        ]
        lease_id, ttl = lease_of(request.lease_id, request.lease_ttl)
        incarnation = incarnation_of(request.incarnation)
        return transfer_pb2.CommitResponse(
            bound=self._store.commit(incarnation, blobs, lease_id, ttl)
        )

    async def Abandon(
        self, request: transfer_pb2.AbandonRequest, context: Context
    ) -> transfer_pb2.AbandonResponse:
        self._store.abandon(
            incarnation_of(request.incarnation), [place_from_proto(p) for p in request.places]
        )
        return transfer_pb2.AbandonResponse()

    async def WatchBlobs(
        self, request: kv_pb2.WatchBlobsRequest, context: Context
    ) -> AsyncIterator[kv_pb2.BlobChanges]:
        async with aclosing(self._names.watch()) as changes:
            async for change in changes:
                yield change.to_message()

    async def Lookup(
        self, request: transfer_pb2.LookupRequest, context: Context
    ) -> transfer_pb2.LookupResponse:
        names = names_of(request.names)
        return transfer_pb2.LookupResponse(held=[self._store.holds(name) for name in names])

    async def Acquire(
        self, request: transfer_pb2.AcquireRequest, context: Context
    ) -> AsyncIterator[transfer_pb2.AcquireResponse]:
        names = list(dict.fromkeys(names_of(request.names)))
        lease_id, ttl = lease_of(request.lease_id, request.lease_ttl)
        elsewhere: list[BlobName] = []
        if request.source_address:
            source = checked_id("source_address", request.source_address)
            elsewhere = [name for name in names if not self._store.holds(name)]
        here = [name for name in names if name not in frozenset(elsewhere)]
        found, missing = self._store.acquire(here, lease_id, ttl)
        yield _acquired(found[:BATCH_BLOBS], missing)
        for start in range(BATCH_BLOBS, len(found), BATCH_BLOBS):
            yield _acquired(found[start : start + BATCH_BLOBS], ())
        if not elsewhere:
            return
        left = dict.fromkeys(elsewhere)
        pulling = self._peers.pulls.pull(elsewhere, source, lease_id, ttl, self._patience(context))
        with tracing.span("kv.pull", source=source, wanted=len(elsewhere)) as span:
            size = 0
            async with aclosing(pulling) as arrivals:
                async for arrived in arrivals:
                    for name, stored in arrived:
                        del left[name]
                        size += stored.place.size
                    yield _acquired(arrived, ())
            blobs = len(elsewhere) - len(left)
            span.set_attributes({"baton.blobs": blobs, "baton.bytes": size})
        found, missing = self._store.acquire(list(left), lease_id, ttl)
        yield _acquired(found, missing)

    def _patience(self, context: Context) -> float:
        """Seconds that a caller may wait for other hosts."""
        left = cast("float | None", context.time_remaining())
        limit = self._peers.settings.peer_read_s
        return limit if left is None else max(0.0, min(limit, left - _ANSWER_S))

    async def ReadBlobs(
        self, request: transfer_pb2.ReadBlobsRequest, context: Context
    ) -> AsyncIterator[transfer_pb2.ReadBlobsResponse]:
        names = list(dict.fromkeys(names_of(request.names)))
        async with aclosing(self._peers.offers.stream(names)) as pieces:
            async for piece in pieces:
                yield transfer_pb2.ReadBlobsResponse(
                    name=piece.name,
                    offset_bytes=piece.offset,
                    data=bytes(piece.data),  # no copy: they are bytes
                    size_bytes=piece.size,
                    checksum=piece.checksum,
                )

    async def DescribeNixl(
        self, request: transfer_pb2.DescribeNixlRequest, context: Context
    ) -> transfer_pb2.DescribeNixlResponse:
        names = list(dict.fromkeys(names_of(request.names)))
        lease_id, ttl = lease_of(request.lease_id, request.lease_ttl)
        if self._peers.nixl is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "NIXL is not in use here")
        answer = await self._peers.nixl.describe(names, lease_id, ttl)
        return transfer_pb2.DescribeNixlResponse(
            agent_metadata=answer.metadata,
            agent=answer.agent,
            places=[
                transfer_pb2.NixlPlace(
                    name=one.name,
                    address=one.address,
                    place=place_to_proto(one.stored.place),
                    checksum=one.stored.checksum,
                )
                for one in answer.blobs
            ],
            missing=answer.missing,
        )

    async def Discard(
        self, request: transfer_pb2.DiscardRequest, context: Context
    ) -> transfer_pb2.DiscardResponse:
        self._store.discard(name_of("name", request.name), place_from_proto(request.place))
        return transfer_pb2.DiscardResponse()

    async def RenewLease(
        self, request: transfer_pb2.RenewLeaseRequest, context: Context
    ) -> transfer_pb2.RenewLeaseResponse:
        lease_id = LeaseId(checked_id("lease_id", request.lease_id))
        self._store.renew(lease_id, seconds_of("lease_ttl", request.lease_ttl))
        return transfer_pb2.RenewLeaseResponse()

    async def ReleaseLease(
        self, request: transfer_pb2.ReleaseLeaseRequest, context: Context
    ) -> transfer_pb2.ReleaseLeaseResponse:
        self._store.release(LeaseId(checked_id("lease_id", request.lease_id)))
        return transfer_pb2.ReleaseLeaseResponse()

    async def GetTransferStatus(
        self, request: transfer_pb2.GetTransferStatusRequest, context: Context
    ) -> transfer_pb2.GetTransferStatusResponse:
        store, counters = self._store, self._store.counters
        read = self._peers.pulls.counters
        store.expire()
        if request.check_integrity:
            store.check_integrity()
            self._room.check_integrity()
            self._attachments.check_integrity()
            self._peers.pulls.check_integrity()
            self._check_names()
        return transfer_pb2.GetTransferStatusResponse(
            pid=os.getpid(),
            segments=[
                transfer_pb2.SegmentStatus(
                    worker_id=space.worker_id,
                    incarnation=space.incarnation,
                    size_bytes=space.allocator.size_bytes,
                    used_bytes=space.allocator.used_bytes,
                    leased_blobs=space.leased_blobs,
                )
                for space in store.spaces
            ],
            leases=len(store.leases),
            leased_blobs=store.leases.leased_blobs,
            blobs=store.blobs,
            reservations=sum(len(space.reserved) for space in store.spaces),
            committed_blobs=counters.committed_blobs,
            duplicate_commits=counters.duplicate_commits,
            acquired_blobs=counters.acquired_blobs,
            missed_names=counters.missed_names,
            evicted_blobs=counters.evicted_blobs,
            corrupt_blobs=counters.corrupt_blobs,
            expired_leases=store.leases.expired,
            peer_blobs=read.blobs,
            peer_bytes=read.bytes,
            peer_failures=read.failures,
            resident_bytes=self._process.memory_info().rss,
            metrics_address=self._metrics.address if self._metrics else "",
            peer_reading=to_duration(read.waited_s),
            room_waiting=to_duration(self._room.waited_s),
        )

    def _check_names(self) -> None:
        self._names.check_integrity()
        ensure(self._names.names == self._store.names, "blob log: not the names that are bound")


def _acquired(
    found: Sequence[tuple[BlobName, Stored]], missing: Sequence[BlobName]
) -> transfer_pb2.AcquireResponse:
    return transfer_pb2.AcquireResponse(
        blobs=[
            transfer_pb2.ReadableBlob(
                name=name,
                place=place_to_proto(stored.place),
                segment_path=stored.segment_path,
                checksum=stored.checksum,
            )
            for name, stored in found
        ],
        missing=missing,
    )
