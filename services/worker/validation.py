"""Checks what callers ask, at the worker's own door, and names the field at fault.

Routers check first; this is for callers that don't. Reads wire messages, answers engine values;
fields are named by their path in the message. Nothing that fails here reaches the engine.
Sampling parameters are checked in `sampling`.
"""

from collections.abc import Sequence

from baton.errors import InvalidRequest, LayoutMismatch, LostRace
from baton.naming import MAX_REQUEST_ID_CHARACTERS, NAME_BYTES, Incarnation
from baton.v1 import decode_pb2, kv_pb2
from engine.types import Limits

MAX_CHOICES = 128
MAX_SALT_BYTES = 64
MAX_LEASE_ID_CHARACTERS = 128


def check_request_id(request_id: str) -> None:
    """Raises InvalidRequest for an id that is empty or too long."""
    if not 1 <= len(request_id) <= MAX_REQUEST_ID_CHARACTERS:
        raise InvalidRequest("request_id", f"must have 1 to {MAX_REQUEST_ID_CHARACTERS} characters")


def check_incarnation(wanted: str, ours: Incarnation) -> None:
    """Raises LostRace where the claim was made on another incarnation. Empty: any."""
    if wanted and wanted != ours:
        raise LostRace(
            f"the claim is on incarnation {wanted}; this one is {ours}", reason="WRONG_INCARNATION"
        )


def check_fingerprint(wanted: str, ours: str) -> None:
    """Raises LayoutMismatch naming both layouts where they differ. Empty: any."""
    if wanted and wanted != ours:
        raise LayoutMismatch(f"KV layout {wanted} is not this worker's layout {ours}")


def check_lease_id(path: str, lease_id: str) -> None:
    """Raises InvalidRequest for a lease id that is empty or too long."""
    if not 1 <= len(lease_id) <= MAX_LEASE_ID_CHARACTERS:
        raise InvalidRequest(path, f"must have 1 to {MAX_LEASE_ID_CHARACTERS} characters")


def check_salt(path: str, salt: bytes) -> bytes:
    """The salt. Raises InvalidRequest where it is too long."""
    if len(salt) > MAX_SALT_BYTES:
        raise InvalidRequest(path, f"must have at most {MAX_SALT_BYTES} bytes")
    return salt


def token_ids(path: str, ids: Sequence[int], limits: Limits) -> tuple[int, ...]:
    """The ids. Raises InvalidRequest naming the first that is not of the vocabulary."""
    if ids and max(ids) >= limits.vocab_size:
        index = next(i for i, token in enumerate(ids) if token >= limits.vocab_size)
        raise InvalidRequest(
            f"{path}[{index}]", f"{ids[index]} is not below the vocabulary's {limits.vocab_size}"
        )
    return tuple(ids)


def prompt_ids(path: str, ids: Sequence[int], limits: Limits) -> tuple[int, ...]:
    """The ids of a prompt, at least one."""
    if not ids:
        raise InvalidRequest(path, "must hold at least one token")
    if len(ids) >= limits.context_tokens:
        raise InvalidRequest(
            path,
            f"{len(ids)} tokens leave no room for output in the {limits.context_tokens} tokens "
            "of context",
        )
    return token_ids(path, ids, limits)


def choices(path: str, count: int) -> int:
    """How many choices to draw a first token for; 0 is one."""
    if count > MAX_CHOICES:
        raise InvalidRequest(path, f"must be at most {MAX_CHOICES}, not {count}")
    return count or 1


def emitted_ids(path: str, ids: Sequence[int], max_tokens: int, limits: Limits) -> tuple[int, ...]:
    """Tokens sampled before; fewer than `max_tokens`, so that something is left to do."""
    if len(ids) >= max_tokens:
        raise InvalidRequest(path, f"{len(ids)} tokens, of at most {max_tokens}, leave none to go")
    return token_ids(path, ids, limits)


def target_s(path: str, message: decode_pb2.DecodeRequest) -> float | None:
    """The inter-token latency target in seconds; None where there is none."""
    if not message.HasField("itl_target"):
        return None
    seconds = message.itl_target.seconds + message.itl_target.nanos * 1e-9
    if seconds <= 0:
        raise InvalidRequest(path, f"must be above 0, not {seconds:g} s")
    return seconds


def check_manifest(path: str, manifest: kv_pb2.Manifest) -> None:
    """Raises InvalidRequest naming the first blob whose name is malformed."""
    for index, blob in enumerate(manifest.blobs):
        if len(blob.name) != NAME_BYTES:
            raise InvalidRequest(f"{path}.blobs[{index}].name", f"must have {NAME_BYTES} bytes")
