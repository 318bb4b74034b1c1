"""Calls to prefill and decode workers.

Converts between the router's values and the wire, maps failures, and sees to it that no call
outlives its caller or stays silent for ever. Knows nothing of claims, renewals or retries.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from baton import errors
from baton.naming import LeaseId
from baton.policy.fleet import Worker
from baton.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    kv_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
    sampling_pb2,
)
from services.router import messages
from services.router.channels import Channels
from services.router.deadline import Deadline
from services.router.events import FinishReason, SampledToken
from services.router.validation import Generation

_CLOSING_S = 0.5
_CLOCK_SKEW_S = 0.05
_TRANSPORT_CODES = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNKNOWN,
}
"""Codes that gRPC itself answers with when a connection breaks or another process listens;
Baton's own statuses carry details."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """What a prefill worker tells a decode worker. Only this module looks inside."""

    message: kv_pb2.Handoff


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A computed prompt."""

    first_token: SampledToken
    finish_reason: FinishReason | None
    handoff: Handoff | None
    """Present exactly when the output goes on."""
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Started:
    """The sequence has its KV: it needs the handoff's lease no more."""

    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one step."""

    tokens: tuple[SampledToken, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The sequence ended."""

    reason: FinishReason


DecodeEvent = Started | Tokens | Finished


class Legs:
    """The two calls that a request consists of, over channels that are kept."""

    def __init__(self, channels: Channels, prefill_timeout_s: float, decode_stall_s: float) -> None:
        self._channels = channels
        self._prefill_timeout_s = prefill_timeout_s
        self._decode_stall_s = decode_stall_s

    async def prefill(
        self,
        worker: Worker,
        attempt: int,
        generation: Generation,
        lease_id: LeaseId,
        deadline: Deadline,
    ) -> Prefilled:
        """Has `worker` compute the prompt; cancelling this stops it there.

        Raises Unavailable or LostRace where another worker may do better, DeadlineExceeded
        when the caller's deadline passed, and whatever else the worker answered.
        """
        request = prefill_pb2.PrefillRequest(
            request_id=generation.request_id,
            attempt=attempt,
            incarnation=worker.incarnation,
            layout_fingerprint=worker.layout_fingerprint,
            prompt_token_ids=generation.prompt_ids,
            sampling=messages.sampling_message(generation),
            lease_id=lease_id,
        )
        with self._channels.use(worker.address) as channel, _failures(worker, deadline):
            stub = prefill_pb2_grpc.PrefillServiceStub(channel)
            timeout = deadline.remaining(at_most=self._prefill_timeout_s)
            answer = await stub.Prefill(request, timeout=timeout)
        return _prefilled(answer, worker)

    async def decode(
        self,
        worker: Worker,
        attempt: int,
        generation: Generation,
        handoff: Handoff | None,
        emitted: Sequence[SampledToken],
        deadline: Deadline,
    ) -> AsyncGenerator[DecodeEvent, None]:
        """Has `worker` continue after `emitted`, from the handoff or else from the token ids.

        The last event is `Finished`; a stream that ends without it raises Unavailable. Raises
        what `prefill` raises. Closing this generator ends the call.
        """
        request = _decode_request(worker, attempt, generation, handoff, emitted)
        with self._channels.use(worker.address) as channel, _failures(worker, deadline):
            stub = decode_pb2_grpc.DecodeServiceStub(channel)
            call = stub.Decode(request, timeout=deadline.remaining())
            patience = self._prefill_timeout_s
            try:
                while (response := await _read(call, patience, worker)) is not grpc.aio.EOF:
                    event = _decode_event(response, worker)
                    if isinstance(event, Tokens):
                        patience = self._decode_stall_s
                    if isinstance(event, Finished):
                        await _closed(call)
                    yield event
                    if isinstance(event, Finished):
                        return
            finally:
                call.cancel()
        raise errors.Unavailable(f"worker {worker.worker_id} ended its stream in the middle")


async def _read(call: Any, patience_s: float, worker: Worker) -> Any:
    """The call's next message; Unavailable after a silence of `patience_s`."""
    try:
        async with asyncio.timeout(patience_s):
            return await call.read()
    except TimeoutError:
        raise errors.Unavailable(
            f"worker {worker.worker_id} was silent for {patience_s:g} s"
        ) from None


async def _closed(call: Any) -> None:
    """Lets a worker that has finished close its side, so that it doesn't see a cancel."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSING_S):
            await call.code()


@contextmanager
def _failures(worker: Worker, deadline: Deadline) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise _explained(error, worker, deadline) from error


def _explained(error: grpc.RpcError, worker: Worker, deadline: Deadline) -> errors.BatonError:
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        if deadline.passed(_CLOCK_SKEW_S):
            return errors.DeadlineExceeded("the request's deadline passed")
        return errors.Unavailable(f"worker {worker.worker_id} took too long")
    told = errors.from_rpc_error(error)
    if code in _TRANSPORT_CODES and not _has_details(error):
        return errors.Unavailable(f"worker {worker.worker_id}: {told.message}")
    return told


def _has_details(error: Any) -> bool:
    return "grpc-status-details-bin" in dict(error.trailing_metadata() or ())


def _prefilled(answer: prefill_pb2.PrefillResponse, worker: Worker) -> Prefilled:
    reason = messages.finish_reason(answer.finish_reason)
    if not answer.HasField("first_token") or answer.HasField("handoff") == (reason is not None):
        raise errors.InternalError(
            f"worker {worker.worker_id} answered neither a handoff nor an end, or both"
        )
    return Prefilled(
        first_token=messages.sampled_token(answer.first_token),
        finish_reason=reason,
        handoff=None if reason is not None else Handoff(answer.handoff),
        cached_tokens=answer.stats.cached_tokens,
    )


def _decode_request(
    worker: Worker,
    attempt: int,
    generation: Generation,
    handoff: Handoff | None,
    emitted: Sequence[SampledToken],
) -> decode_pb2.DecodeRequest:
    request = decode_pb2.DecodeRequest(
        request_id=generation.request_id,
        attempt=attempt,
        incarnation=worker.incarnation,
        layout_fingerprint=worker.layout_fingerprint,
    )
    if handoff is None:
        prompt = request.prompt
        prompt.prompt_token_ids.extend(generation.prompt_ids)
        prompt.emitted_token_ids.extend(token.token_id for token in emitted)
        prompt.sampling.CopyFrom(messages.sampling_message(generation))
        return request
    request.handoff.CopyFrom(handoff.message)
    choice = request.handoff.choices[0]
    choice.emitted.extend(
        sampling_pb2.SampledToken(token_id=token.token_id)
        for token in emitted[len(choice.emitted) :]
    )
    return request


def _decode_event(response: decode_pb2.DecodeResponse, worker: Worker) -> DecodeEvent:
    match response.WhichOneof("event"):
        case "started":
            return Started(response.started.cached_tokens)
        case "tokens":
            return Tokens(tuple(map(messages.sampled_token, response.tokens.tokens)))
        case "finished":
            reason = messages.finish_reason(response.finished.finish_reason)
            if reason is not None:
                return Finished(reason)
    raise errors.InternalError(f"worker {worker.worker_id} streamed an unknown event")
