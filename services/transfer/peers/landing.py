"""Puts pieces of blobs into our own segment, and checks each blob once it is whole.

Trusts no peer: order, sizes and bytes are checked, and a silent one is given up. Knows neither
who waits nor what is bound to a name.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import numpy as np
import xxhash

from baton import errors
from baton.naming import BlobName
from services.common.transfer.copying import CopyThreads
from services.common.transfer.place import (
    HEADER_BYTES,
    Bytes,
    Checksum,
    Place,
    write_generation,
)
from services.transfer.peers.reader import Piece
from services.transfer.peers.segment import PeerSegment, Reserved


@dataclass(frozen=True, slots=True)
class Landed:
    """A blob that came, or did not."""

    name: BlobName
    place: Place | None
    """Where it is, whole and right, for the receiver to bind; None: it is not to be had."""
    checksum: Checksum
    broken: bool = False
    """Whether it came, but not as it should."""


class _Blob:
    """One blob that is being written."""

    def __init__(self, first: Piece, reserved: Reserved) -> None:
        self.name, self.size, self.checksum = first.name, first.size, first.checksum
        self.reserved = reserved
        self.written = 0
        self._hasher = xxhash.xxh3_64()

    def fits(self, piece: Piece) -> bool:
        """Whether `piece` is the next one."""
        same = (piece.name, piece.size, piece.checksum) == (self.name, self.size, self.checksum)
        end = self.written + len(piece.data)
        return same and piece.offset == self.written and self.written < end <= self.size

    @property
    def whole(self) -> bool:
        return self.written == self.size

    def write(self, segment: Bytes, data: bytes | memoryview) -> bool:
        """Writes the next piece; whether nothing is wrong so far. To be called in a thread."""
        place = self.reserved.place
        begin = place.offset + HEADER_BYTES + self.written
        if not self.written:
            write_generation(segment, place, 0)
        np.copyto(segment[begin : begin + len(data)], np.frombuffer(data, np.uint8))
        # Of the copy, not of what came: what is bound must be right in our own memory.
        self._hasher.update(segment[begin : begin + len(data)].data)
        self.written += len(data)
        if not self.whole:
            return True
        write_generation(segment, place, place.generation)
        return self._hasher.intdigest() == self.checksum


@dataclass(frozen=True, slots=True)
class Landing:
    """Takes blobs in. Belongs to one event loop; landings may run side by side."""

    segment: PeerSegment
    threads: CopyThreads
    stall_s: float
    """How long a peer may be silent, and how long a blob waits for room."""

    async def land(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Landed, None]:
        """Each blob as soon as it is whole, or known not to come.

        A place belongs to the receiver once it is given out. Raises Unavailable where the peer
        is silent, Exhausted where there is no room, and what the reader raises.
        """
        blob: _Blob | None = None
        try:
            while (piece := await self._next(pieces)) is not None:
                if blob is not None and not blob.fits(piece):
                    broken, blob = blob, None
                    self.segment.abandon(broken.reserved)
                    if broken.name != piece.name:
                        yield Landed(broken.name, None, broken.checksum, broken=True)
                if not piece.size or (blob is None and piece.offset):
                    yield Landed(piece.name, None, piece.checksum, broken=piece.size > 0)
                    continue
                if blob is None:
                    blob = await self._begin(piece)
                right = blob.fits(piece) and await self._write(blob, piece)
                if blob.whole or not right:
                    done, blob = blob, None
                    if not right:
                        self.segment.abandon(done.reserved)
                    place = done.reserved.place if right else None
                    yield Landed(done.name, place, done.checksum, broken=not right)
        finally:
            if blob is not None:
                self.segment.abandon(blob.reserved)

    async def _next(self, pieces: AsyncGenerator[Piece, None]) -> Piece | None:
        try:
            async with asyncio.timeout(self.stall_s):
                return await anext(pieces, None)
        except TimeoutError as error:
            raise errors.Unavailable(f"the peer was silent for {self.stall_s} s") from error

    async def _begin(self, piece: Piece) -> _Blob:
        reserved = await self.segment.reserve(piece.size, self.stall_s)
        if reserved is None:
            raise errors.Exhausted("no room for blobs of other hosts")
        return _Blob(piece, reserved)

    async def _write(self, blob: _Blob, piece: Piece) -> bool:
        mapping = blob.reserved.mapping
        mapping.pin()
        try:
            segment = mapping.bytes
            return await self.threads.run(lambda: blob.write(segment, piece.data))
        finally:
            mapping.unpin()
