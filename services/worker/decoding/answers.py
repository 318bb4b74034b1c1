"""The events of a sequence as messages."""

from baton.v1 import decode_pb2, kv_pb2
from engine.types import FinishReason
from services.common.durations import to_duration
from services.worker import messages
from services.worker.decoding.events import (
    Event,
    Finished,
    HandedOff,
    PromptLogprobs,
    Started,
    Tokens,
)
from services.worker.decoding.jobs import emitted_before
from services.worker.host import Host

_REASONS = {
    FinishReason.PREEMPTED: decode_pb2.HANDOFF_REASON_PREEMPTED,
    FinishReason.HANDOVER: decode_pb2.HANDOFF_REASON_DRAINING,
}


def response(
    event: Event, request: decode_pb2.DecodeRequest, host: Host
) -> decode_pb2.DecodeResponse:
    """The message that tells `event` of the sequence that `request` asked `host` for."""
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
                    fetching=to_duration(event.fetching_s),
                )
            )
        case Finished():
            return decode_pb2.DecodeResponse(
                finished=decode_pb2.DecodeFinished(
                    finish_reason=messages.finish_reason(event.reason),
                    decoded_tokens=event.decoded_tokens,
                )
            )
        case HandedOff():
            return decode_pb2.DecodeResponse(
                handed_off=decode_pb2.DecodeHandedOff(
                    handoff=_handoff(event, request, host), reason=_REASONS[event.reason]
                )
            )


def _handoff(event: HandedOff, request: decode_pb2.DecodeRequest, host: Host) -> kv_pb2.Handoff:
    start: decode_pb2.Prompt | kv_pb2.Handoff
    if request.WhichOneof("start") == "handoff":
        start, choice = request.handoff, request.handoff.choices[0].index
    else:
        start, choice = request.prompt, request.prompt.choice
    decoded = [messages.sampled_token(token) for token in event.decoded]
    return kv_pb2.Handoff(
        request_id=request.request_id,
        attempt=request.attempt,
        prompt_token_ids=start.prompt_token_ids,
        sampling=start.sampling,
        manifest=messages.manifest(
            host.fingerprint, event.kv_tokens, event.held, host.identity.transfer_address
        ),
        choices=[kv_pb2.ChoiceState(index=choice, emitted=emitted_before(request) + decoded)],
        lease_id=event.lease_id,
        tenant_salt=start.tenant_salt,
    )
