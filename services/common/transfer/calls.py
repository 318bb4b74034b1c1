"""The transfer service's calls in domain types: protobuf messages go no further in.

Every call takes a deadline in seconds and raises the BatonError that the service's status
stands for. Knows nothing of segments' bytes, retries or attachments' lives.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from baton import errors
from baton.naming import BlobName, Incarnation, LeaseId, WorkerId
from baton.v1 import transfer_pb2, transfer_pb2_grpc
from services.common.durations import to_duration
from services.common.transfer.messages import place_from_proto, place_to_proto
from services.common.transfer.place import Checksum, Place, SegmentId, Stored

T = TypeVar("T")

Scope = Callable[[], AbstractAsyncContextManager[None]]
"""Makes what is put around each wait for an answer. Sees BatonErrors, and may raise them."""


@dataclass(frozen=True, slots=True)
class Written:
    """A written place and the name to bind to it."""

    name: BlobName
    place: Place
    checksum: Checksum
    recompute_seconds: float


@dataclass(frozen=True, slots=True)
class SegmentGrant:
    """A segment that is ours as long as the attachment lives."""

    path: str
    segment_id: SegmentId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Acquired:
    """One batch of an answer: what can be read now, and what is not held."""

    blobs: tuple[tuple[BlobName, Stored], ...]
    missing: tuple[BlobName, ...]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise errors.from_rpc_error(error) from error


class TransferCalls:
    """Calls over one channel. Safe for concurrent use in one event loop."""

    def __init__(
        self, channel: grpc.aio.Channel, incarnation: Incarnation, scope: Scope = nullcontext
    ) -> None:
        """`scope` is put around all waits but those of `attach` and `probe`."""
        self._scope = scope
        self._stub: transfer_pb2_grpc.TransferServiceAsyncStub = (
            transfer_pb2_grpc.TransferServiceStub(channel)
        )
        self._incarnation = incarnation

    async def attach(
        self, worker_id: WorkerId, pid: int, segment_bytes: int
    ) -> AsyncGenerator[SegmentGrant, None]:
        """Yields our segment once, then stays open, silent, for the attachment's life."""
        request = transfer_pb2.AttachRequest(
            worker_id=worker_id,
            incarnation=self._incarnation,
            pid=pid,
            segment_bytes=segment_bytes,
        )
        call = self._stub.Attach(request)
        try:
            with _translated():
                async for answer in call:
                    yield SegmentGrant(
                        answer.segment_path, SegmentId(answer.segment_id), answer.segment_bytes
                    )
        finally:
            call.cancel()

    async def reserve(
        self, sizes: Sequence[int], wait_s: float, deadline_s: float
    ) -> tuple[Place, ...]:
        """Places for `sizes` from the first on, as many as there is room for within `wait_s`."""
        request = transfer_pb2.ReserveRequest(
            incarnation=self._incarnation, sizes_bytes=sizes, wait=to_duration(wait_s)
        )
        answer = await self._answer(self._stub.Reserve, request, deadline_s)
        return tuple(place_from_proto(place) for place in answer.places)

    async def commit(
        self, written: Sequence[Written], lease_id: LeaseId, ttl_s: float, deadline_s: float
    ) -> tuple[bool, ...]:
        """Binds names; for each whether ours is the place it is bound to."""
        request = transfer_pb2.CommitRequest(
            incarnation=self._incarnation, lease_id=lease_id, lease_ttl=to_duration(ttl_s)
        )
        for blob in written:
            request.blobs.add(
                name=blob.name,
                place=place_to_proto(blob.place),
                checksum=blob.checksum,
                recompute=to_duration(blob.recompute_seconds),
            )
        answer = await self._answer(self._stub.Commit, request, deadline_s)
        return tuple(answer.bound)

    async def abandon(self, places: Sequence[Place], deadline_s: float) -> None:
        """Gives reserved places back."""
        request = transfer_pb2.AbandonRequest(
            incarnation=self._incarnation, places=[place_to_proto(place) for place in places]
        )
        await self._answer(self._stub.Abandon, request, deadline_s)

    async def lookup(self, names: Sequence[BlobName], deadline_s: float) -> frozenset[BlobName]:
        """Those of `names` that are held."""
        request = transfer_pb2.LookupRequest(names=names)
        answer = await self._answer(self._stub.Lookup, request, deadline_s)
        return frozenset(name for name, held in zip(names, answer.held, strict=True) if held)

    async def probe(self, deadline_s: float) -> None:
        """Asks for nothing, to see whether there is an answer; waits for a connection, too."""
        with _translated():
            request = transfer_pb2.LookupRequest()
            await self._stub.Lookup(request, timeout=deadline_s, wait_for_ready=True)

    async def acquire(
        self,
        names: Sequence[BlobName],
        lease_id: LeaseId,
        ttl_s: float,
        deadline_s: float,
        source_address: str = "",
    ) -> AsyncGenerator[Acquired, None]:
        """Leases blobs and yields where they are, a batch at a time, as they become readable.

        `source_address`: of another host's service that may have what is not held here.
        """
        request = transfer_pb2.AcquireRequest(
            names=names,
            lease_id=lease_id,
            lease_ttl=to_duration(ttl_s),
            source_address=source_address,
        )
        call = None
        try:
            while True:
                async with self._scope():
                    with _translated():
                        # Not before the scope, which may refuse, is entered.
                        call = call or self._stub.Acquire(request, timeout=deadline_s)
                        answer = await call.read()
                if not isinstance(answer, transfer_pb2.AcquireResponse):
                    return
                yield Acquired(
                    tuple((BlobName(blob.name), _stored(blob)) for blob in answer.blobs),
                    tuple(BlobName(name) for name in answer.missing),
                )
        finally:
            if call is not None:
                call.cancel()

    async def discard(self, name: BlobName, place: Place, deadline_s: float) -> None:
        """Reports that a blob can't be what was committed."""
        request = transfer_pb2.DiscardRequest(name=name, place=place_to_proto(place))
        await self._answer(self._stub.Discard, request, deadline_s)

    async def release_lease(self, lease_id: LeaseId, deadline_s: float) -> None:
        """Ends a lease; no error where it is gone already."""
        request = transfer_pb2.ReleaseLeaseRequest(lease_id=lease_id)
        await self._answer(self._stub.ReleaseLease, request, deadline_s)

    async def leased_blobs(self, deadline_s: float) -> int:
        """Blobs in our segment that are under a lease; 0 where we have none."""
        request = transfer_pb2.GetTransferStatusRequest()
        answer = await self._answer(self._stub.GetTransferStatus, request, deadline_s)
        ours = (one for one in answer.segments if one.incarnation == self._incarnation)
        return sum(segment.leased_blobs for segment in ours)

    async def _answer(
        self, method: Callable[..., Awaitable[T]], request: Any, deadline_s: float
    ) -> T:
        async with self._scope():
            with _translated():
                return await method(request, timeout=deadline_s)


def _stored(blob: transfer_pb2.ReadableBlob) -> Stored:
    return Stored(place_from_proto(blob.place), blob.segment_path, Checksum(blob.checksum))
