"""Checks what callers ask, at the worker's own door, and names the field at fault.

Routers check first; this is for callers that don't. Reads wire messages, answers engine values;
fields are named by their path in the message. Nothing that fails here reaches the engine.
"""

import math
from collections.abc import Sequence

from baton.errors import InvalidRequest, LayoutMismatch, LostRace
from baton.naming import MAX_REQUEST_ID_CHARACTERS, NAME_BYTES, Incarnation
from baton.v1 import kv_pb2, sampling_pb2
from engine.types import Limits, SamplingParams

MAX_TEMPERATURE = 100.0
MAX_STOP_TOKENS = 64
MAX_LOGPROBS = 20
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


def sampling_params(
    path: str, message: sampling_pb2.SamplingParams, prompt_tokens: int, limits: Limits
) -> SamplingParams:
    """The sampling parameters for a prompt of `prompt_tokens`."""
    for name in ("seed", "max_tokens"):
        if not message.HasField(name):
            raise InvalidRequest(f"{path}.{name}", "must be set")
    room = limits.context_tokens - prompt_tokens
    max_tokens = _within(f"{path}.max_tokens", message.max_tokens, 1, room)
    if len(message.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidRequest(f"{path}.stop_token_ids", f"at most {MAX_STOP_TOKENS}")
    stops = token_ids(f"{path}.stop_token_ids", message.stop_token_ids, limits)
    top_p = _number(f"{path}.top_p", message.top_p, 1.0) if message.HasField("top_p") else 1.0
    if top_p == 0.0:
        raise InvalidRequest(f"{path}.top_p", "must be above 0")
    return SamplingParams(
        temperature=_number(f"{path}.temperature", message.temperature, MAX_TEMPERATURE)
        if message.HasField("temperature")
        else 1.0,
        top_k=_within(f"{path}.top_k", message.top_k, 0, limits.vocab_size),
        top_p=top_p,
        min_p=_number(f"{path}.min_p", message.min_p, 1.0),
        seed=message.seed,
        max_tokens=max_tokens,
        min_tokens=_within(f"{path}.min_tokens", message.min_tokens, 0, max_tokens),
        stop_token_ids=frozenset(stops),
        ignore_eos=message.ignore_eos,
        logprobs=_within(f"{path}.logprobs", message.logprobs, 0, MAX_LOGPROBS)
        if message.HasField("logprobs")
        else None,
    )


def emitted_ids(path: str, ids: Sequence[int], max_tokens: int, limits: Limits) -> tuple[int, ...]:
    """Tokens sampled before; fewer than `max_tokens`, so that something is left to do."""
    if len(ids) >= max_tokens:
        raise InvalidRequest(path, f"{len(ids)} tokens, of at most {max_tokens}, leave none to go")
    return token_ids(path, ids, limits)


def check_manifest(path: str, manifest: kv_pb2.Manifest) -> None:
    """Raises InvalidRequest naming the first blob whose name is malformed."""
    for index, blob in enumerate(manifest.blobs):
        if len(blob.name) != NAME_BYTES:
            raise InvalidRequest(f"{path}.blobs[{index}].name", f"must have {NAME_BYTES} bytes")


def _within(path: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequest(path, f"must be {low} to {high}, not {value}")
    return value


def _number(path: str, value: float, high: float) -> float:
    if not math.isfinite(value) or not 0.0 <= value <= high:
        raise InvalidRequest(path, f"must be 0 to {high:g}, not {value}")
    return value
