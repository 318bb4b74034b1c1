"""The servicer of PrefillService: messages in, messages out."""

from typing import Any

import grpc

from baton.naming import LeaseId, RequestId
from baton.policy.fleet import Claim
from baton.v1 import kv_pb2, prefill_pb2, prefill_pb2_grpc
from engine.types import Request
from services.common.durations import to_duration
from services.common.rpc import Register
from services.prefill.flow import Prefilled, PrefillFlow, PrefillJob, PrefillStats
from services.worker import messages, validation
from services.worker.host import Host
from services.worker.sampling import constraint_of, sampling_params

NAME = prefill_pb2.DESCRIPTOR.services_by_name["PrefillService"].full_name


class PrefillServicer(prefill_pb2_grpc.PrefillServiceServicer):
    """Answers for one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._flow = PrefillFlow(host)

    async def Prefill(  # noqa: N802 - named by the protocol
        self,
        request: prefill_pb2.PrefillRequest,
        _context: grpc.aio.ServicerContext[Any, Any],
    ) -> prefill_pb2.PrefillResponse:
        """Computes one prompt."""
        result = await self._flow.run(await self._job(request))
        response = prefill_pb2.PrefillResponse(
            first_tokens=[
                prefill_pb2.FirstToken(
                    choice=first.choice,
                    token=messages.sampled_token(first.token),
                    finish_reason=messages.finish_reason(first.finish_reason),
                )
                for first in result.first_tokens
            ],
            prompt_logprobs=[messages.sampled_token(token) for token in result.prompt_logprobs],
            stats=_stats(result.stats),
        )
        if result.unfinished:
            response.handoff.CopyFrom(self._handoff(request, result))
        return response

    async def _job(self, request: prefill_pb2.PrefillRequest) -> PrefillJob:
        host, limits = self._host, self._host.port.limits
        validation.check_request_id(request.request_id)
        validation.check_incarnation(request.incarnation, host.identity.incarnation)
        validation.check_fingerprint(request.layout_fingerprint, host.fingerprint)
        validation.check_lease_id("lease_id", request.lease_id)
        prompt = validation.prompt_ids("prompt_token_ids", request.prompt_token_ids, limits)
        sampling = sampling_params("sampling", request.sampling, len(prompt), limits)
        constraint = constraint_of("sampling.constraint", request.sampling)
        return PrefillJob(
            Claim(RequestId(request.request_id), request.attempt),
            Request(
                request_id=messages.sequence_key(request.request_id, request.attempt),
                prompt=prompt,
                sampling=sampling,
                choices=validation.choices("choices", request.choices),
                salt=validation.check_salt("tenant_salt", request.tenant_salt),
                hand_over_after=1,
                export=True,
                mask=await host.constraints.mask_of("sampling.constraint", constraint),
            ),
            LeaseId(request.lease_id),
        )

    def _handoff(self, request: prefill_pb2.PrefillRequest, result: Prefilled) -> kv_pb2.Handoff:
        return kv_pb2.Handoff(
            request_id=request.request_id,
            attempt=request.attempt,
            prompt_token_ids=request.prompt_token_ids,
            sampling=request.sampling,
            manifest=messages.manifest(
                self._host.fingerprint,
                len(request.prompt_token_ids),
                result.held,
                self._host.identity.transfer_address,
            ),
            choices=[
                kv_pb2.ChoiceState(
                    index=first.choice, emitted=[messages.sampled_token(first.token)]
                )
                for first in result.unfinished
            ],
            lease_id=request.lease_id,
            tenant_salt=request.tenant_salt,
        )


def _stats(stats: PrefillStats) -> prefill_pb2.PrefillStats:
    return prefill_pb2.PrefillStats(
        cached_tokens=stats.cached_tokens,
        computed_tokens=stats.computed_tokens,
        waiting=to_duration(stats.waiting_s),
        computing=to_duration(stats.computing_s),
        publishing=to_duration(stats.publishing_s),
        published_blobs=stats.published_blobs,
        published_bytes=stats.published_bytes,
    )


def make_servicer(host: Host) -> tuple[Register, str]:
    """How to register the servicer for `host`, and its full name."""
    servicer = PrefillServicer(host)

    def register(server: grpc.aio.Server) -> None:
        prefill_pb2_grpc.add_PrefillServiceServicer_to_server(servicer, server)

    return register, NAME
