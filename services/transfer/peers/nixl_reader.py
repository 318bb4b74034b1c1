"""Reads blobs of another host by NIXL: asks where they are over gRPC, then fetches the bytes.

The peer leases the blobs to us while we read; a lease that we can't end ends by its time.
"""

import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import grpc
import xxhash
from google.protobuf.duration_pb2 import Duration

from baton import errors
from baton.naming import BlobName, LeaseId, new_id
from baton.v1 import transfer_pb2
from services.common.background import Background
from services.common.security import PLAIN, Security
from services.common.transfer.copying import CopyThreads
from services.common.transfer.place import Checksum
from services.transfer.peers.channels import Channels
from services.transfer.peers.nixl import SLOT_BYTES, NixlAgent, NixlFailed, Remote
from services.transfer.peers.reader import Piece, absent

log = logging.getLogger(__name__)

_LEASE_S = 5.0
_CALL_S = 2.0
_START_S = 30.0
"""For the first answer of a peer: it loads NIXL then."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of one blob."""

    blob: transfer_pb2.NixlPlace
    begin: int
    size: int

    @property
    def last(self) -> bool:
        return self.begin + self.size == self.blob.place.size_bytes


class _Hashing:
    """Hashes blobs as their parts come."""

    def __init__(self) -> None:
        self._hasher = xxhash.xxh3_64()

    def check(self, parts: Sequence[_Part], views: Sequence[memoryview]) -> list[bool]:
        """For each part whether nothing is wrong so far. To be called in a thread."""
        right: list[bool] = []
        for part, view in zip(parts, views, strict=True):
            if not part.begin:
                self._hasher = xxhash.xxh3_64()
            self._hasher.update(view)
            right.append(not part.last or self._hasher.intdigest() == part.blob.checksum)
        return right


class NixlReader:
    """A PeerReader by NIXL. Checks bytes too: a broken blob is reported to its owner."""

    def __init__(self, agent: NixlAgent, threads: CopyThreads, security: Security = PLAIN) -> None:
        self._agent = agent
        self._threads = threads
        self._channels = Channels(security)
        self._background = Background()
        self._known: dict[str, bytes] = {}  # name of an agent -> its metadata that is loaded

    async def connect(self, source: str) -> None:
        """Makes ready for reads from `source`. Raises BatonError where it does not do NIXL."""
        with _translated():
            await self._agent.start()
            await self._describe(source, (), LeaseId(""), _START_S)

    async def read(self, source: str, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        """See PeerReader."""
        lease_id = LeaseId(new_id("nixl-read"))
        try:
            with _translated():
                await self._agent.start()
                answer = await self._describe(source, names, lease_id, _CALL_S)
                for name in answer.missing:
                    yield absent(BlobName(name))
                hashing = _Hashing()
                for batch in _batches(answer.places):
                    slot = await self._agent.take_slot()
                    try:
                        places = [Remote(p.blob.address + p.begin, p.size) for p in batch]
                        views = await self._agent.read(answer.agent, places, slot)
                        right = await self._threads.run(partial(hashing.check, batch, views))
                        for part, view, fine in zip(batch, views, right, strict=True):
                            yield self._piece(source, part, view, fine)
                    finally:
                        self._agent.give_slot(slot)
                    self._background.spawn(self._renew(source, lease_id))
        finally:
            self._background.spawn(self._release(source, lease_id))

    def _piece(self, source: str, part: _Part, view: memoryview, right: bool) -> Piece:
        blob, name = part.blob, BlobName(part.blob.name)
        if not right:
            self._background.spawn(self._report(source, blob))
            return absent(name)
        size, checksum = blob.place.size_bytes, Checksum(blob.checksum)
        return Piece(name, part.begin, view, size, checksum)

    async def _describe(
        self, source: str, names: Sequence[BlobName], lease_id: LeaseId, patience_s: float
    ) -> transfer_pb2.DescribeNixlResponse:
        request = transfer_pb2.DescribeNixlRequest(
            names=names,
            lease_id=lease_id,
            lease_ttl=Duration(seconds=int(_LEASE_S)),
            agent=self._agent.name,
        )
        with self._channels.use(source) as stub:
            answer = await stub.DescribeNixl(request, timeout=patience_s)
        if self._known.get(answer.agent) != answer.agent_metadata:
            await self._agent.connect(answer.agent_metadata)
            self._known[answer.agent] = answer.agent_metadata
        return answer

    async def _report(self, source: str, blob: transfer_pb2.NixlPlace) -> None:
        request = transfer_pb2.DiscardRequest(name=blob.name, place=blob.place)
        with self._channels.use(source) as stub, _translated():
            await stub.Discard(request, timeout=_CALL_S)

    async def _renew(self, source: str, lease_id: LeaseId) -> None:
        ttl = Duration(seconds=int(_LEASE_S))
        request = transfer_pb2.RenewLeaseRequest(lease_id=lease_id, lease_ttl=ttl)
        with self._channels.use(source) as stub, _translated():
            await stub.RenewLease(request, timeout=_CALL_S)

    async def _release(self, source: str, lease_id: LeaseId) -> None:
        request = transfer_pb2.ReleaseLeaseRequest(lease_id=lease_id)
        with self._channels.use(source) as stub, _translated():
            await stub.ReleaseLease(request, timeout=_CALL_S)

    async def drop_idle(self) -> None:
        """Closes connections that were not used lately."""
        await self._channels.drop_idle()

    async def close(self) -> None:
        """See PeerReader."""
        await self._background.close(_CALL_S)
        await self._channels.close()


def _batches(places: Sequence[transfer_pb2.NixlPlace]) -> Iterator[list[_Part]]:
    """Blobs, cut where they are large, in lists that fit a slot."""
    batch: list[_Part] = []
    room = SLOT_BYTES
    for blob in places:
        begin, size = 0, blob.place.size_bytes
        while begin < size:
            if not room:
                yield batch
                batch, room = [], SLOT_BYTES
            take = min(size - begin, room)
            batch.append(_Part(blob, begin, take))
            begin, room = begin + take, room - take
    if batch:
        yield batch


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except NixlFailed as error:
        raise errors.Unavailable(f"NIXL: {error}", reason="NIXL_FAILED") from error
    except grpc.RpcError as error:
        raise errors.from_rpc_error(error) from error
