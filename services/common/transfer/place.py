"""Where blobs lie in a segment, and how a place tells its readers that it is whole.

A place is a header of 64 bytes and a payload. The header begins with the place's generation
(u64, little-endian), 0 while the payload is being written; the rest is zero. Writers set it to
0, write the payload, then set it; readers compare it before and after their copy. The checksum
of the copy is what finally counts: the generation only tells a reused place from a broken one.
"""

import struct
from dataclasses import dataclass
from typing import NewType

import numpy as np
from numpy.typing import NDArray

SegmentId = NewType("SegmentId", str)
Generation = NewType("Generation", int)
Checksum = NewType("Checksum", int)
"""xxh3 (64 bit) of a payload."""
Bytes = NDArray[np.uint8]

HEADER_BYTES = 64
ALIGNMENT = 64
_GENERATION = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Place:
    """A header and `size` payload bytes at `offset` in a segment."""

    segment_id: SegmentId
    offset: int
    size: int
    generation: Generation

    @property
    def payload(self) -> slice:
        """The payload's range in the segment."""
        start = self.offset + HEADER_BYTES
        return slice(start, start + self.size)


@dataclass(frozen=True, slots=True)
class Stored:
    """A blob that can be read: where, and what its bytes must hash to."""

    place: Place
    segment_path: str
    checksum: Checksum


def extent_bytes(payload_bytes: int) -> int:
    """Bytes that a payload takes in a segment, with header and alignment."""
    return HEADER_BYTES + -(-payload_bytes // ALIGNMENT) * ALIGNMENT


def read_generation(segment: Bytes, place: Place) -> int:
    """The generation in the place's header; 0 while it is being written."""
    return int(_GENERATION.unpack_from(segment.data, place.offset)[0])


def write_generation(segment: Bytes, place: Place, generation: int) -> None:
    """Sets the generation in the place's header."""
    _GENERATION.pack_into(segment.data, place.offset, generation)
