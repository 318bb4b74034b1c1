"""Calls to prefill and decode workers.

Converts between the router's values and the wire, maps failures, and sees to it that no call
outlives its caller or stays silent for ever. Knows nothing of claims, renewals or retries.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from baton import errors
from baton.naming import LeaseId, RequestId
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
class FirstToken:
    """The first token of a choice."""

    token: SampledToken
    finish_reason: FinishReason | None
    """None where the choice goes on."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A computed prompt."""

    first_tokens: tuple[FirstToken, ...]
    """Of each choice, by index."""
    handoff: Handoff | None
    """Present exactly when a choice goes on; it has the state of all that do."""
    cached_tokens: int
    prompt_logprobs: tuple[SampledToken, ...]
    """Of the prompt's tokens from the second one on; empty unless asked for."""


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """What a decode worker is asked: to go on with one choice after `emitted`."""

    request_id: RequestId
    attempt: int
    choice: int
    generation: Generation
    emitted: tuple[SampledToken, ...]
    handoff: Handoff | None
    """None: from the token ids."""
    wants_prompt: bool
    """Whether the prompt's log probabilities, if asked for, are not known yet."""


@dataclass(frozen=True, slots=True)
class Started:
    """The sequence has its KV: it needs the handoff's lease no more."""

    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Prompted:
    """The prompt's log probabilities, from its second token on."""

    prompt_logprobs: tuple[SampledToken, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one step."""

    tokens: tuple[SampledToken, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The sequence ended."""

    reason: FinishReason


DecodeEvent = Started | Prompted | Tokens | Finished


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
            choices=generation.choices,
        )
        with self._channels.use(worker.address) as channel, _failures(worker, deadline):
            stub = prefill_pb2_grpc.PrefillServiceStub(channel)
            timeout = deadline.remaining(at_most=self._prefill_timeout_s)
            answer = await stub.Prefill(request, timeout=timeout)
        return _prefilled(answer, generation.choices, worker)

    async def decode(
        self, worker: Worker, asked: DecodeCall, deadline: Deadline
    ) -> AsyncGenerator[DecodeEvent, None]:
        """Has `worker` go on with a choice.

        The last event is `Finished`; a stream that ends without it raises Unavailable. Raises
        what `prefill` raises. Closing this generator ends the call.
        """
        request = _decode_request(worker, asked)
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


def _prefilled(answer: prefill_pb2.PrefillResponse, choices: int, worker: Worker) -> Prefilled:
    first_tokens = tuple(
        FirstToken(messages.sampled_token(first.token), messages.finish_reason(first.finish_reason))
        for first in answer.first_tokens
    )
    going_on = [index for index, one in enumerate(first_tokens) if one.finish_reason is None]
    sensible = (
        [first.choice for first in answer.first_tokens if first.HasField("token")]
        == list(range(choices))
        and answer.HasField("handoff") == bool(going_on)
        and [choice.index for choice in answer.handoff.choices] == going_on
    )
    if not sensible:
        raise errors.InternalError(
            f"worker {worker.worker_id} answered with choices that are neither ended nor handed "
            "off, or both"
        )
    return Prefilled(
        first_tokens=first_tokens,
        handoff=Handoff(answer.handoff) if going_on else None,
        cached_tokens=answer.stats.cached_tokens,
        prompt_logprobs=tuple(map(messages.sampled_token, answer.prompt_logprobs)),
    )


def _decode_request(worker: Worker, asked: DecodeCall) -> decode_pb2.DecodeRequest:
    generation = asked.generation
    request = decode_pb2.DecodeRequest(
        request_id=asked.request_id,
        attempt=asked.attempt,
        incarnation=worker.incarnation,
        layout_fingerprint=worker.layout_fingerprint,
    )
    if asked.handoff is None:
        prompt = request.prompt
        prompt.prompt_token_ids.extend(generation.prompt_ids)
        prompt.emitted_token_ids.extend(token.token_id for token in asked.emitted)
        prompt.sampling.CopyFrom(
            messages.sampling_message(generation, wants_prompt=asked.wants_prompt)
        )
        prompt.choice = asked.choice
        return request
    handoff = request.handoff
    handoff.CopyFrom(asked.handoff.message)
    handoff.sampling.ClearField("prompt_logprobs")
    del handoff.choices[:]
    state = handoff.choices.add(index=asked.choice)
    state.emitted.extend(
        sampling_pb2.SampledToken(token_id=token.token_id) for token in asked.emitted
    )
    return request


def _decode_event(response: decode_pb2.DecodeResponse, worker: Worker) -> DecodeEvent:
    match response.WhichOneof("event"):
        case "started":
            return Started(response.started.cached_tokens)
        case "prompt":
            return Prompted(tuple(map(messages.sampled_token, response.prompt.prompt_logprobs)))
        case "tokens":
            return Tokens(tuple(map(messages.sampled_token, response.tokens.tokens)))
        case "finished":
            reason = messages.finish_reason(response.finished.finish_reason)
            if reason is not None:
                return Finished(reason)
    raise errors.InternalError(f"worker {worker.worker_id} streamed an unknown event")
