"""The servicer of DecodeService: messages in, messages out."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from baton.errors import InvalidRequest
from baton.naming import BlobName, RequestId
from baton.policy.fleet import Claim
from baton.v1 import decode_pb2, decode_pb2_grpc, kv_pb2
from engine.types import Request
from services.common.rpc import Register
from services.decode.flow import (
    DecodeFlow,
    DecodeJob,
    Event,
    Finished,
    PromptLogprobs,
    Started,
    Tokens,
)
from services.worker import messages, validation
from services.worker.host import Host
from services.worker.sampling import sampling_params

NAME = decode_pb2.DESCRIPTOR.services_by_name["DecodeService"].full_name


class DecodeServicer(decode_pb2_grpc.DecodeServiceServicer):
    """Answers for one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._flow = DecodeFlow(host)

    async def Decode(  # noqa: N802 - named by the protocol
        self,
        request: decode_pb2.DecodeRequest,
        _context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """Streams the tokens of one sequence."""
        async with aclosing(self._flow.run(self._job(request))) as events:
            async for event in events:
                yield _response(event)

    def _job(self, request: decode_pb2.DecodeRequest) -> DecodeJob:
        validation.check_request_id(request.request_id)
        validation.check_incarnation(request.incarnation, self._host.identity.incarnation)
        validation.check_fingerprint(request.layout_fingerprint, self._host.fingerprint)
        claim = Claim(RequestId(request.request_id), request.attempt)
        match request.WhichOneof("start"):
            case "handoff":
                return self._continued(claim, request.handoff)
            case "prompt":
                return DecodeJob(claim, self._prompt(claim, request.prompt), None)
            case _:
                raise InvalidRequest("start", "must be a handoff or a prompt")

    def _prompt(self, claim: Claim, prompt: decode_pb2.Prompt) -> Request:
        limits = self._host.port.limits
        ids = validation.prompt_ids("prompt.prompt_token_ids", prompt.prompt_token_ids, limits)
        sampling = sampling_params("prompt.sampling", prompt.sampling, len(ids), limits)
        return Request(
            request_id=messages.sequence_key(claim.request_id, claim.attempt),
            prompt=ids,
            sampling=sampling,
            emitted=validation.emitted_ids(
                "prompt.emitted_token_ids", prompt.emitted_token_ids, sampling.max_tokens, limits
            ),
            choice=prompt.choice,
            salt=validation.check_salt("prompt.tenant_salt", prompt.tenant_salt),
        )

    def _continued(self, claim: Claim, handoff: kv_pb2.Handoff) -> DecodeJob:
        limits, manifest = self._host.port.limits, handoff.manifest
        validation.check_fingerprint(manifest.layout_fingerprint, self._host.fingerprint)
        validation.check_manifest("handoff.manifest", manifest)
        ids = validation.prompt_ids("handoff.prompt_token_ids", handoff.prompt_token_ids, limits)
        sampling = sampling_params("handoff.sampling", handoff.sampling, len(ids), limits)
        if len(handoff.choices) != 1:
            raise InvalidRequest(
                "handoff.choices",
                f"must hold the one choice that this call goes on with, not {len(handoff.choices)}",
            )
        choice = handoff.choices[0]
        emitted = [token.token_id for token in choice.emitted]
        path = "handoff.choices[0].emitted"
        if not emitted:
            raise InvalidRequest(path, "must hold the first token")
        request = Request(
            request_id=messages.sequence_key(claim.request_id, claim.attempt),
            prompt=ids,
            sampling=sampling,
            emitted=validation.emitted_ids(path, emitted, sampling.max_tokens, limits),
            choice=choice.index,
            salt=validation.check_salt("handoff.tenant_salt", handoff.tenant_salt),
        )
        names = frozenset(BlobName(blob.name) for blob in manifest.blobs)
        ours = manifest.transfer_address == self._host.identity.transfer_address
        return DecodeJob(claim, request, names, "" if ours else manifest.transfer_address)


def _response(event: Event) -> decode_pb2.DecodeResponse:
    match event:
        case Tokens():
            tokens = [messages.sampled_token(token) for token in event.tokens]
            return decode_pb2.DecodeResponse(tokens=decode_pb2.DecodeTokens(tokens=tokens))
        case PromptLogprobs():
            tokens = [messages.sampled_token(token) for token in event.tokens]
            return decode_pb2.DecodeResponse(prompt=decode_pb2.DecodePrompt(prompt_logprobs=tokens))
        case Started():
            return decode_pb2.DecodeResponse(
                started=decode_pb2.DecodeStarted(
                    cached_tokens=event.cached_tokens,
                    missing_tokens=event.missing_tokens,
                    fetched_blobs=event.fetched_blobs,
                    fetched_bytes=event.fetched_bytes,
                    fetching=messages.duration(event.fetching_s),
                )
            )
        case Finished():
            return decode_pb2.DecodeResponse(
                finished=decode_pb2.DecodeFinished(
                    finish_reason=messages.finish_reason(event.reason),
                    decoded_tokens=event.decoded_tokens,
                )
            )


def make_servicer(host: Host) -> tuple[Register, str]:
    """How to register the servicer for `host`, and its full name."""
    servicer = DecodeServicer(host)

    def register(server: grpc.aio.Server) -> None:
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(servicer, server)

    return register, NAME
