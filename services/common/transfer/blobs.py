"""Blobs as a worker gives and wants them, and the counters of its client."""

from dataclasses import dataclass

from baton.naming import BlobName


@dataclass(frozen=True, slots=True)
class OutgoingBlob:
    """Bytes to publish. `data` (contiguous) must not change until `publish` returned."""

    name: BlobName
    data: memoryview
    recompute_seconds: float
    """Estimated time to compute the bytes again; eviction weighs it against the size."""


@dataclass(frozen=True, slots=True)
class IncomingBlob:
    """Where to put a blob's bytes.

    `into` (contiguous, writable) is as long as the blob, and the client's alone until `fetch`
    returned. Its content is undefined unless the name was returned.
    """

    name: BlobName
    into: memoryview


@dataclass(slots=True)
class TransferStats:
    """What a client did since its start."""

    published_blobs: int = 0
    """Blobs copied into the segment and bound to their names."""
    published_bytes: int = 0
    shared_blobs: int = 0
    """Blobs that were held already, and put under the lease instead of copied or kept."""
    fetched_blobs: int = 0
    fetched_bytes: int = 0
    corrupt_blobs: int = 0
    """Blobs whose copy failed its checksum."""
    stale_blobs: int = 0
    """Blobs whose place was reused, or whose segment went, before they were copied."""
    attachments: int = 0
    """Times that a segment was given; above 1 after the service restarted or a stream broke."""
    breaker_opened: int = 0
    """Times that the service fell silent or went away, and calls failed at once from then on."""
