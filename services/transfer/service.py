"""The TransferService servicer: checks messages and converts them; protobuf goes no further."""

# ruff: noqa: N802, ARG002 - the methods' names and parameters are gRPC's

import math
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from baton import errors
from baton.naming import NAME_BYTES, BlobName, Incarnation, LeaseId, WorkerId
from baton.v1 import transfer_pb2, transfer_pb2_grpc
from services.common.transfer.messages import place_from_proto, place_to_proto
from services.common.transfer.place import Checksum, Stored
from services.transfer.attachments import Attachments
from services.transfer.room import RoomQueue
from services.transfer.store import Blob, BlobStore

Context = grpc.aio.ServicerContext[Any, Any]

BATCH_BLOBS = 64
"""Blobs in one message of Acquire's stream."""
_MAX_ITEMS = 65_536
_MAX_ID_CHARACTERS = 256
_MAX_SECONDS = 3_600.0


class TransferServicer(transfer_pb2_grpc.TransferServiceServicer):
    """Answers calls; all on one event loop, so that each answer is atomic."""

    def __init__(self, store: BlobStore, room: RoomQueue, attachments: Attachments) -> None:
        self._store = store
        self._room = room
        self._attachments = attachments

    async def Attach(
        self, request: transfer_pb2.AttachRequest, context: Context
    ) -> AsyncIterator[transfer_pb2.AttachResponse]:
        incarnation = _incarnation(request.incarnation)
        if not request.segment_bytes:
            raise errors.InvalidRequest("segment_bytes", "must be positive")
        segment = await self._attachments.attach(
            WorkerId(_id("worker_id", request.worker_id)),
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
        _limit("sizes_bytes", request.sizes_bytes)
        for index, size in enumerate(request.sizes_bytes):
            if not size:
                raise errors.InvalidRequest(f"sizes_bytes[{index}]", "must be positive")
        wait_s = _seconds("wait", request.wait) if request.HasField("wait") else 0.0
        places = await self._room.reserve(
            _incarnation(request.incarnation), request.sizes_bytes, wait_s
        )
        return transfer_pb2.ReserveResponse(places=[place_to_proto(place) for place in places])

    async def Commit(
        self, request: transfer_pb2.CommitRequest, context: Context
    ) -> transfer_pb2.CommitResponse:
        _limit("blobs", request.blobs)
        blobs = [
            Blob(
                _name(f"blobs[{index}].name", blob.name),
                place_from_proto(blob.place),
                Checksum(blob.checksum),
                _seconds(f"blobs[{index}].recompute", blob.recompute, limit=math.inf),
            )
            for index, blob in enumerate(request.blobs)
        ]
        lease_id, ttl = _lease(request.lease_id, request.lease_ttl)
        incarnation = _incarnation(request.incarnation)
        return transfer_pb2.CommitResponse(
            bound=self._store.commit(incarnation, blobs, lease_id, ttl)
        )

    async def Abandon(
        self, request: transfer_pb2.AbandonRequest, context: Context
    ) -> transfer_pb2.AbandonResponse:
        self._store.abandon(
            _incarnation(request.incarnation), [place_from_proto(p) for p in request.places]
        )
        return transfer_pb2.AbandonResponse()

    async def Lookup(
        self, request: transfer_pb2.LookupRequest, context: Context
    ) -> transfer_pb2.LookupResponse:
        names = _names(request.names)
        return transfer_pb2.LookupResponse(held=[self._store.holds(name) for name in names])

    async def Acquire(
        self, request: transfer_pb2.AcquireRequest, context: Context
    ) -> AsyncIterator[transfer_pb2.AcquireResponse]:
        names = _names(request.names)
        lease_id, ttl = _lease(request.lease_id, request.lease_ttl)
        found, missing = self._store.acquire(names, lease_id, ttl)
        yield _acquired(found[:BATCH_BLOBS], missing)
        for start in range(BATCH_BLOBS, len(found), BATCH_BLOBS):
            yield _acquired(found[start : start + BATCH_BLOBS], ())

    async def Discard(
        self, request: transfer_pb2.DiscardRequest, context: Context
    ) -> transfer_pb2.DiscardResponse:
        self._store.discard(_name("name", request.name), place_from_proto(request.place))
        return transfer_pb2.DiscardResponse()

    async def RenewLease(
        self, request: transfer_pb2.RenewLeaseRequest, context: Context
    ) -> transfer_pb2.RenewLeaseResponse:
        lease_id = LeaseId(_id("lease_id", request.lease_id))
        self._store.renew(lease_id, _seconds("lease_ttl", request.lease_ttl))
        return transfer_pb2.RenewLeaseResponse()

    async def ReleaseLease(
        self, request: transfer_pb2.ReleaseLeaseRequest, context: Context
    ) -> transfer_pb2.ReleaseLeaseResponse:
        self._store.release(LeaseId(_id("lease_id", request.lease_id)))
        return transfer_pb2.ReleaseLeaseResponse()

    async def GetTransferStatus(
        self, request: transfer_pb2.GetTransferStatusRequest, context: Context
    ) -> transfer_pb2.GetTransferStatusResponse:
        store, counters = self._store, self._store.counters
        store.expire()
        if request.check_integrity:
            store.check_integrity()
            self._room.check_integrity()
            self._attachments.check_integrity()
        return transfer_pb2.GetTransferStatusResponse(
            pid=os.getpid(),
            segments=[
                transfer_pb2.SegmentStatus(
                    worker_id=space.worker_id,
                    incarnation=space.incarnation,
                    size_bytes=space.allocator.size_bytes,
                    used_bytes=space.allocator.used_bytes,
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
        )


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


def _id(field: str, value: str) -> str:
    if not value or len(value) > _MAX_ID_CHARACTERS:
        raise errors.InvalidRequest(field, f"must have 1 to {_MAX_ID_CHARACTERS} characters")
    return value


def _incarnation(value: str) -> Incarnation:
    return Incarnation(_id("incarnation", value))


def _name(field: str, value: bytes) -> BlobName:
    if len(value) != NAME_BYTES:
        raise errors.InvalidRequest(field, f"must be {NAME_BYTES} bytes, is {len(value)}")
    return BlobName(value)


def _names(values: Sequence[bytes]) -> list[BlobName]:
    _limit("names", values)
    return [_name(f"names[{index}]", value) for index, value in enumerate(values)]


def _limit(field: str, items: Sequence[object]) -> None:
    if len(items) > _MAX_ITEMS:
        raise errors.InvalidRequest(field, f"must have at most {_MAX_ITEMS} items")


def _seconds(field: str, value: Duration, limit: float = _MAX_SECONDS) -> float:
    seconds = value.seconds + value.nanos / 1e9
    if not 0 <= seconds <= limit:
        raise errors.InvalidRequest(field, f"must be from 0 to {limit:.0f} seconds")
    return seconds


def _lease(lease_id: str, ttl: Duration) -> tuple[LeaseId, float]:
    if lease_id:
        _id("lease_id", lease_id)
    return LeaseId(lease_id), _seconds("lease_ttl", ttl)
