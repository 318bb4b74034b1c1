"""A router for tests of the gateway's page, that answers what it is told and counts calls."""

import asyncio
from collections.abc import Sequence

from baton.errors import BatonError, NotFound, PermissionDenied, Unauthenticated
from baton.v1 import inference_pb2, telemetry_pb2, worker_pb2
from services.common.durations import to_duration


class FakeUpstream:
    """An `Upstream`. With `operators`, only those keys may ask; `tenants` are known but may not."""

    def __init__(self, operators: Sequence[str] = (), tenants: Sequence[str] = ()) -> None:
        self.operators = operators
        self.tenants = tenants
        self.reports: list[inference_pb2.RequestReport] = []
        self.running: list[inference_pb2.RequestReport] = []
        self.answer = fleet()
        self.spans: dict[str, list[telemetry_pb2.Span]] = {}
        self.broken: BatonError | None = None
        self.calls: list[str] = []
        self.gate: asyncio.Event | None = None
        """Answers wait for it, where there is one."""

    async def fleet(self, key: str) -> inference_pb2.GetFleetResponse:
        await self._called("fleet", key)
        return self.answer

    async def requests(
        self, key: str, after: int, limit: int = 0
    ) -> inference_pb2.ListRequestsResponse:
        await self._called("check" if limit == 1 else "requests", key)
        last = len(self.reports)
        new = self.reports[after if after <= last else 0 :]
        return inference_pb2.ListRequestsResponse(
            requests=new[-limit:] if limit else new, sequence=last, running=self.running
        )

    async def trace(self, key: str, request_id: str) -> inference_pb2.GetTraceResponse:
        await self._called("trace", key)
        if request_id not in self.spans:
            raise NotFound(f"no process remembers {request_id}")
        return inference_pb2.GetTraceResponse(spans=self.spans[request_id], silent=["decode-1"])

    async def _called(self, name: str, key: str) -> None:
        self.calls.append(name)
        if self.gate is not None:
            await self.gate.wait()
        if self.broken is not None:
            raise self.broken
        if key in self.tenants:
            raise PermissionDenied("the key is not an operator's")
        if self.operators and key not in self.operators:
            raise Unauthenticated("an operator's key is needed")


def report(
    request_id: str = "r",
    *,
    arrival_s: float = 1000.0,
    queue_s: float = 0.01,
    prefill_s: float = 0.1,
    handoff_s: float | None = 0.02,
    decode_s: float = 1.0,
    outcome: str = "COMPLETED",
    tokens: int = 64,
    itl_s: float | None = 0.02,
    ttft_target_s: float | None = 0.5,
    itl_target_s: float | None = 0.05,
    parts: tuple[float, float, float] | None = (0.01, 0.07, 0.01),
    tenant: str = "",
    reason: str = "",
) -> inference_pb2.RequestReport:
    """A report; without `tokens` it ended before its first one."""
    message = inference_pb2.RequestReport(
        request_id=request_id, tenant=tenant, reason=reason, choices=1
    )
    message.outcome = getattr(inference_pb2, f"REQUEST_OUTCOME_{outcome}")
    message.trace_id = request_id.encode().rjust(16, b"t")[:16]
    message.arrival.FromMicroseconds(round(arrival_s * 1e6))
    usage, timings = message.usage, message.timings
    usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens = 512, tokens, 128
    handoff = handoff_s if tokens > 1 else None
    total_s = queue_s + prefill_s + ((handoff or 0) + decode_s if tokens else 0)
    timings.queue.CopyFrom(to_duration(queue_s))
    timings.prefill.CopyFrom(to_duration(prefill_s))
    timings.time_to_first_token.CopyFrom(to_duration(queue_s + prefill_s))
    timings.total.CopyFrom(to_duration(total_s))
    if handoff is not None:
        timings.handoff_gap.CopyFrom(to_duration(handoff))
    if itl_s is not None and tokens > 1:
        message.inter_token.CopyFrom(to_duration(itl_s))
    if ttft_target_s is not None:
        message.targets.ttft.CopyFrom(to_duration(ttft_target_s))
    if itl_target_s is not None:
        message.targets.itl.CopyFrom(to_duration(itl_target_s))
    if parts is not None:
        for name, value in zip(("waiting", "computing", "publishing"), parts, strict=True):
            getattr(message.prefill, name).CopyFrom(to_duration(value))
    timings.prefill_worker, timings.decode_worker = "prefill-0", "decode-0"
    timings.prefill_attempts = timings.decode_attempts = 1
    return message


def fleet(
    prompt_tokens: int = 1000, output_tokens: int = 500, waiting: int = 0, running: int = 0
) -> inference_pb2.GetFleetResponse:
    """A prefill and a decode worker, both well."""
    answer = inference_pb2.GetFleetResponse()
    answer.queue.redis_available = True
    answer.queue.waiting = waiting
    answer.router.running_requests = running
    for name, role in (
        ("decode-0", worker_pb2.WORKER_ROLE_DECODE),
        ("prefill-0", worker_pb2.WORKER_ROLE_PREFILL),
    ):
        worker = answer.workers.add()
        record, status = worker.record, worker.status
        record.worker_id, record.role, record.incarnation = name, role, "1"
        record.model.name = "tiny"
        record.cost.base_seconds, record.cost.prompt_token_seconds = 0.002, 3.1e-5
        record.cost.sequence_seconds, record.cost.relative_error = 1.2e-4, 0.043
        record.load.decode_step.FromMilliseconds(18)
        record.load.context_tokens = 12_000
        status.record.CopyFrom(record)
        status.running_sequences, status.max_sequences = 3, 16
        status.prefilled_tokens, status.sampled_tokens = prompt_tokens, output_tokens
        status.dtype = "bfloat16"
        status.kv_groups.add(
            name="full", total_blocks=100, used_blocks=20, cached_blocks=30, block_bytes=65536
        )
        status.peaks.flops_per_second, status.peaks.bytes_per_second = 6e12, 3e11
        phase = status.phases.add(phase=role, steps=10, flops=6e11, bytes=3e10)
        phase.busy.FromMilliseconds(500)
    return answer


def span(
    name: str, start_s: float, took_s: float, own: str, parent: str = ""
) -> telemetry_pb2.Span:
    """A span of process `prefill-0`."""
    message = telemetry_pb2.Span(
        name=name, process="prefill-0", span_id=own.encode(), parent_span_id=parent.encode()
    )
    message.start.FromMicroseconds(round(start_s * 1e6))
    message.duration.CopyFrom(to_duration(took_s))
    return message
