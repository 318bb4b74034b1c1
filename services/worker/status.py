"""The servicer of WorkerService: what a worker holds and has done, and its blocks' names."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import psutil

from baton.errors import InternalError
from baton.v1 import kv_pb2, worker_pb2, worker_pb2_grpc
from engine.errors import IntegrityError
from engine.peaks import Peaks
from engine.types import EngineStatus
from services.common.durations import to_duration
from services.common.fleet.record import to_record
from services.worker.host import Host
from services.worker.work import Phase, PhaseWork

_PHASES = {
    Phase.PREFILL: worker_pb2.STEP_PHASE_PREFILL,
    Phase.DECODE: worker_pb2.STEP_PHASE_DECODE,
    Phase.MIXED: worker_pb2.STEP_PHASE_MIXED,
}


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers for one host."""

    def __init__(self, host: Host, *, dtype: str, threads: int) -> None:
        self._host = host
        self._dtype = dtype
        self._threads = threads

    async def GetWorkerStatus(  # noqa: N802 - named by the protocol
        self,
        request: worker_pb2.GetWorkerStatusRequest,
        _context: grpc.aio.ServicerContext[Any, Any],
    ) -> worker_pb2.GetWorkerStatusResponse:
        """Status; with `check_integrity`, INTERNAL names what is broken."""
        if request.check_integrity:
            try:
                await self._host.check_integrity()
            except IntegrityError as error:
                raise InternalError(str(error), reason="INTEGRITY") from error
        return self._response(await self._host.port.status())

    async def WatchBlobs(  # noqa: N802 - named by the protocol
        self,
        _request: kv_pb2.WatchBlobsRequest,
        _context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[kv_pb2.BlobChanges]:
        """Streams which full blocks the engine holds, until the worker stops."""
        async with aclosing(self._host.port.blobs.watch()) as changes:
            async for change in changes:
                yield change.to_message()

    def _response(self, engine: EngineStatus) -> worker_pb2.GetWorkerStatusResponse:
        host, counters = self._host, self._host.runs.counters
        stats, canary = host.transfer.stats, host.canary.work
        return worker_pb2.GetWorkerStatusResponse(
            record=to_record(host.describe()),
            kv_groups=[
                worker_pb2.KvGroupStatus(
                    name=group.name,
                    total_blocks=group.total_blocks,
                    used_blocks=group.used_blocks,
                    cached_blocks=group.cached_blocks,
                    block_bytes=group.block_bytes,
                )
                for group in engine.groups
            ],
            running_sequences=engine.running,
            waiting_sequences=engine.waiting,
            block_tokens=host.port.layout.block_size,
            steps=engine.steps,
            steps_by_batch_size=engine.steps_by_batch_size,
            prefilled_tokens=engine.prefilled_tokens - canary.computed_tokens,
            sampled_tokens=engine.sampled_tokens - canary.sampled_tokens,
            cached_tokens=engine.cached_tokens - canary.cached_tokens,
            published_blobs=stats.published_blobs,
            fetched_blobs=stats.fetched_blobs,
            finished_requests=counters.finished,
            cancelled_requests=counters.cancelled,
            refused_requests=counters.refused,
            recomputed_handoffs=host.recomputed_handoffs,
            resident_bytes=psutil.Process().memory_info().rss,
            dtype=self._dtype,
            threads=self._threads,
            preempted_sequences=engine.preempted,
            drained_sequences=engine.handed_over,
            local_prompts=host.local_prompts,
            published_bytes=stats.published_bytes,
            fetched_bytes=stats.fetched_bytes,
            fetching=to_duration(host.sequences.fetches.total),
            transfer_given_up=stats.breaker_opened,
            metrics_address=host.metrics_address,
            max_sequences=host.port.config.max_sequences,
            phases=[_phase_work(phase, work) for phase, work in host.work.phases.items()],
            peaks=None if host.peaks is None else _peaks(host.peaks),
            canaries=host.canary.count,
            canary_drift=host.canary.drift,
        )


def _phase_work(phase: Phase, work: PhaseWork) -> worker_pb2.PhaseWork:
    return worker_pb2.PhaseWork(
        phase=_PHASES[phase],
        steps=work.steps,
        busy=to_duration(work.busy_s),
        flops=work.flops,
        bytes=work.bytes,
        prompt_tokens=work.prompt_tokens,
        sequences=work.sequences,
        context_tokens=work.context_tokens,
    )


def _peaks(peaks: Peaks) -> worker_pb2.DevicePeaks:
    return worker_pb2.DevicePeaks(
        flops_per_second=peaks.flops_per_second, bytes_per_second=peaks.bytes_per_second
    )
