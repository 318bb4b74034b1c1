"""Engine values as wire messages. The way back, which has to check, is in `validation`."""

from collections.abc import Iterable

from baton.v1 import kv_pb2, sampling_pb2
from engine.types import BlockRef, FinishReason, SampledToken

_FINISH_REASONS = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}


def sampled_token(token: SampledToken) -> sampling_pb2.SampledToken:
    """A token of the output."""
    message = sampling_pb2.SampledToken(token_id=token.token_id)
    if token.logprob is not None:
        message.logprob = token.logprob
    for token_id, logprob in token.top:
        message.top_logprobs.add(token_id=token_id, logprob=logprob)
    return message


def finish_reason(reason: FinishReason | None) -> "sampling_pb2.FinishReason.ValueType":
    """Why the output ended; UNSPECIFIED where it goes on elsewhere."""
    if reason is None:
        return sampling_pb2.FINISH_REASON_UNSPECIFIED
    return _FINISH_REASONS.get(reason, sampling_pb2.FINISH_REASON_UNSPECIFIED)


def blob_refs(blocks: Iterable[BlockRef]) -> list[kv_pb2.BlobRef]:
    """Published blocks, as a manifest lists them."""
    ordered = sorted(blocks, key=lambda block: (block.group, block.index, block.used_tokens))
    return [
        kv_pb2.BlobRef(
            name=block.name,
            group=block.group,
            block_index=block.index,
            used_tokens=block.used_tokens,
        )
        for block in ordered
    ]


def manifest(
    layout_fingerprint: str, tokens: int, held: Iterable[BlockRef], transfer_address: str
) -> kv_pb2.Manifest:
    """Which blobs hold the KV of a sequence's first `tokens`, and where they are."""
    return kv_pb2.Manifest(
        layout_fingerprint=layout_fingerprint,
        length_tokens=tokens,
        blobs=blob_refs(held),
        transfer_address=transfer_address,
    )


def sequence_key(request_id: str, attempt: int) -> str:
    """The engine's id for an attempt of a request."""
    return f"{request_id}#{attempt}"
