"""Decode requests as jobs, checked; what is wrong is named by its field."""

from collections.abc import Sequence

from baton.errors import InvalidRequest
from baton.naming import BlobName, RequestId
from baton.policy.fleet import Claim
from baton.v1 import decode_pb2, kv_pb2, sampling_pb2
from engine.types import Request
from services.worker import messages, validation
from services.worker.decoding.events import DecodeJob, HandedOver
from services.worker.host import Host
from services.worker.sampling import constraint_of, sampling_params


class Jobs:
    """Makes jobs for one host out of messages."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def job(self, message: decode_pb2.DecodeRequest) -> DecodeJob:
        """The job that `message` asks for. Raises InvalidRequest, LostRace where the claim is on
        another incarnation, LayoutMismatch."""
        validation.check_request_id(message.request_id)
        validation.check_incarnation(message.incarnation, self._host.identity.incarnation)
        validation.check_fingerprint(message.layout_fingerprint, self._host.fingerprint)
        target_s = validation.target_s("itl_target", message)
        handed_over = None
        match message.WhichOneof("start"):
            case "handoff":
                request = await self._continued(message)
                handed_over = self._kv(message.handoff.manifest)
            case "prompt":
                prompt = message.prompt
                request = await self._request(
                    message, "prompt", prompt, prompt.emitted_token_ids, prompt.choice
                )
            case _:
                raise InvalidRequest("start", "must be a handoff or a prompt")
        claim = Claim(RequestId(message.request_id), message.attempt)
        return DecodeJob(claim, request, handed_over, target_s)

    async def _continued(self, message: decode_pb2.DecodeRequest) -> Request:
        handoff = message.handoff
        validation.check_fingerprint(handoff.manifest.layout_fingerprint, self._host.fingerprint)
        validation.check_manifest("handoff.manifest", handoff.manifest)
        if len(handoff.choices) != 1:
            raise InvalidRequest(
                "handoff.choices",
                f"must hold the one choice that this call goes on with, not {len(handoff.choices)}",
            )
        choice = handoff.choices[0]
        emitted = [token.token_id for token in choice.emitted]
        return await self._request(
            message, "handoff", handoff, emitted, choice.index, "choices[0].emitted"
        )

    async def _request(
        self,
        message: decode_pb2.DecodeRequest,
        path: str,
        start: decode_pb2.Prompt | kv_pb2.Handoff,
        emitted: Sequence[int],
        choice: int,
        emitted_field: str = "emitted_token_ids",
    ) -> Request:
        """The sequence to run. `path` names `start` in the message."""
        limits = self._host.port.limits
        ids = validation.prompt_ids(f"{path}.prompt_token_ids", start.prompt_token_ids, limits)
        sampling = sampling_params(f"{path}.sampling", start.sampling, len(ids), limits)
        held_to = f"{path}.sampling.constraint"
        constraint = constraint_of(held_to, start.sampling)
        emitted_path = f"{path}.{emitted_field}"
        before = validation.emitted_ids(emitted_path, emitted, sampling.max_tokens, limits)
        return Request(
            request_id=messages.sequence_key(message.request_id, message.attempt),
            prompt=ids,
            sampling=sampling,
            emitted=before,
            choice=choice,
            salt=validation.check_salt(f"{path}.tenant_salt", start.tenant_salt),
            priority=message.priority,
            mask=await self._host.constraints.mask_of(held_to, constraint, before, emitted_path),
        )

    def _kv(self, manifest: kv_pb2.Manifest) -> HandedOver:
        ours = manifest.transfer_address == self._host.identity.transfer_address
        return HandedOver(
            frozenset(BlobName(blob.name) for blob in manifest.blobs),
            manifest.length_tokens,
            "" if ours else manifest.transfer_address,
        )


def emitted_before(message: decode_pb2.DecodeRequest) -> list[sampling_pb2.SampledToken]:
    """The tokens that the sequence of a request came with, as far as it says."""
    if message.HasField("handoff"):
        return list(message.handoff.choices[0].emitted)
    ids = message.prompt.emitted_token_ids
    return [sampling_pb2.SampledToken(token_id=token) for token in ids]
