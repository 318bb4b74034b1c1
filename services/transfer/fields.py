"""Fields of requests, checked: each function raises InvalidRequest that names the field."""

from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration

from baton import errors
from baton.naming import NAME_BYTES, BlobName, Incarnation, LeaseId

_MAX_ITEMS = 65_536
_MAX_ID_CHARACTERS = 256
_MAX_SECONDS = 3_600.0


def checked_id(field: str, value: str) -> str:
    """An id as it came."""
    if not value or len(value) > _MAX_ID_CHARACTERS:
        raise errors.InvalidRequest(field, f"must have 1 to {_MAX_ID_CHARACTERS} characters")
    return value


def incarnation_of(value: str) -> Incarnation:
    """A worker's incarnation."""
    return Incarnation(checked_id("incarnation", value))


def name_of(field: str, value: bytes) -> BlobName:
    """A blob's name."""
    if len(value) != NAME_BYTES:
        raise errors.InvalidRequest(field, f"must be {NAME_BYTES} bytes, is {len(value)}")
    return BlobName(value)


def names_of(values: Sequence[bytes]) -> list[BlobName]:
    """Blobs' names."""
    check_length("names", values)
    return [name_of(f"names[{index}]", value) for index, value in enumerate(values)]


def check_length(field: str, items: Sequence[object]) -> None:
    """Refuses a list that is too long."""
    if len(items) > _MAX_ITEMS:
        raise errors.InvalidRequest(field, f"must have at most {_MAX_ITEMS} items")


def seconds_of(field: str, value: Duration, at_most: float = _MAX_SECONDS) -> float:
    """A duration from 0 to `at_most`, in seconds."""
    seconds = value.seconds + value.nanos / 1e9
    if not 0 <= seconds <= at_most:
        raise errors.InvalidRequest(field, f"must be from 0 to {at_most:.0f} seconds")
    return seconds


def lease_of(lease_id: str, ttl: Duration) -> tuple[LeaseId, float]:
    """A lease, perhaps none (empty), and its time to live in seconds."""
    if lease_id:
        checked_id("lease_id", lease_id)
    return LeaseId(lease_id), seconds_of("lease_ttl", ttl)
