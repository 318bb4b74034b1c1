"""What every way of reading another host's blobs looks like.

Says nothing of how bytes travel, where they go to, or who waits for them.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from baton.naming import BlobName
from services.common.transfer.place import Checksum

PIECE_BYTES = 1 << 20
PEER_PAUSED = "PEER_PAUSED"
"""Reason of the Unavailable for a peer that is left alone for a while."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a blob."""

    name: BlobName
    offset: int
    data: bytes | memoryview
    """Its bytes, of use until the next piece is asked for."""
    size: int
    """Of the whole blob; 0: it is not held, or turned out to be broken."""
    checksum: Checksum
    """xxh3 that the whole blob must have."""


def absent(name: BlobName) -> Piece:
    """Says that a blob is not to be had."""
    return Piece(name, 0, b"", 0, Checksum(0))


class PeerReader(Protocol):
    """Reads from other hosts. Belongs to one event loop; reads may run side by side."""

    def read(self, source: str, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        """The blobs of `names` that the transfer service at `source` (host:port) holds.

        A blob's pieces come in order and follow each other; one that begins again at offset 0
        replaces what came of it before. Bytes are not checked: who takes them does. Closing the
        generator ends the read, and lets go of what the peer holds for it. It may wait as long
        as the peer is silent: who waits bounds that. Raises BatonError where the peer fails.
        """

    async def close(self) -> None:
        """Ends what is left of all reads."""
