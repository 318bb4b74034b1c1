"""Asks every worker and transfer service how it does, all at a time.

A relay: their answers go to the client as they came, so this module works on messages. One
that does not answer is in the report too, with the reason; nothing waits for it for long.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
import psutil

from baton import errors
from baton.policy.fleet import Worker
from baton.v1 import inference_pb2, transfer_pb2, transfer_pb2_grpc, worker_pb2, worker_pb2_grpc
from services.common.durations import to_duration
from services.common.fleet.record import to_record
from services.router.channels import Channels
from services.router.dispatch import Dispatcher
from services.router.fleet import FleetView
from services.router.leases import LeaseKeeper
from services.router.register import Register
from services.router.report import Outcome

PATIENCE_S = 1.0
INTEGRITY_PATIENCE_S = 5.0
"""A check may wait for a step to end."""

Answer = TypeVar("Answer")


class FleetStatus:
    """The fleet as it is at this moment."""

    def __init__(
        self,
        router_id: str,
        channels: Channels,
        fleet: FleetView,
        dispatcher: Dispatcher,
        register: Register,
        leases: LeaseKeeper,
        indexed_blobs: Callable[[], int] = lambda: 0,
        metrics_address: str = "",
    ) -> None:
        """`indexed_blobs` tells how many names the cache index knows, `metrics_address` where
        this router serves its metrics."""
        self._router_id = router_id
        self._channels = channels
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._register = register
        self._leases = leases
        self._indexed_blobs = indexed_blobs
        self._metrics_address = metrics_address
        self._process = psutil.Process()

    async def ask(self, check_integrity: bool) -> inference_pb2.GetFleetResponse:
        """Everyone's report. With `check_integrity`, InternalError where this router is broken;
        what is broken elsewhere is said in the report."""
        if check_integrity:
            self._dispatcher.check_integrity()
        await self._fleet.refresh()
        workers = self._fleet.workers
        addresses = sorted({worker.transfer_address for worker in workers} - {""})
        patience = INTEGRITY_PATIENCE_S if check_integrity else PATIENCE_S
        worker_reports, transfer_reports = await asyncio.gather(
            asyncio.gather(*(self._worker(one, check_integrity, patience) for one in workers)),
            asyncio.gather(*(self._transfer(one, check_integrity, patience) for one in addresses)),
        )
        return inference_pb2.GetFleetResponse(
            workers=worker_reports,
            transfers=transfer_reports,
            queue=self._queue(),
            router=self._router(),
        )

    async def _worker(
        self, worker: Worker, check_integrity: bool, patience_s: float
    ) -> inference_pb2.FleetWorker:
        request = worker_pb2.GetWorkerStatusRequest(check_integrity=check_integrity)
        with self._channels.use(worker.address) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            answer, error = await _answer(stub.GetWorkerStatus(request, timeout=patience_s))
        return inference_pb2.FleetWorker(
            record=to_record(worker),
            status=answer,
            error=error,
            pending_claims=max(0, worker.pending.sequences),
        )

    async def _transfer(
        self, address: str, check_integrity: bool, patience_s: float
    ) -> inference_pb2.FleetTransfer:
        request = transfer_pb2.GetTransferStatusRequest(check_integrity=check_integrity)
        with self._channels.use(address) as channel:
            stub = transfer_pb2_grpc.TransferServiceStub(channel)
            answer, error = await _answer(stub.GetTransferStatus(request, timeout=patience_s))
        return inference_pb2.FleetTransfer(address=address, status=answer, error=error)

    def _queue(self) -> inference_pb2.QueueStatus:
        available, snapshot = self._fleet.redis_available, self._fleet.snapshot
        if snapshot is None:
            return inference_pb2.QueueStatus(redis_available=available)
        return inference_pb2.QueueStatus(
            waiting=snapshot.waiting,
            turns=snapshot.turns,
            claims=snapshot.claims,
            redis_available=available,
            queued_work=to_duration(snapshot.queued_s),
            degraded=self._fleet.degraded,
        )

    def _router(self) -> inference_pb2.RouterStatus:
        counters = self._register.counters
        return inference_pb2.RouterStatus(
            router_id=self._router_id,
            pid=os.getpid(),
            running_requests=self._register.running,
            leases=len(self._leases),
            completed_requests=counters.count(Outcome.COMPLETED),
            cancelled_requests=counters.count(Outcome.CANCELLED),
            failed_requests=counters.count(Outcome.FAILED),
            retried_legs=counters.retried_legs,
            resident_bytes=self._process.memory_info().rss,
            refused_requests=counters.count(Outcome.REFUSED),
            resumed_sequences=counters.resumed,
            recomputed_sequences=counters.recomputed,
            migrated_sequences=counters.migrated,
            degraded_requests=counters.degraded,
            local_prompts=counters.local,
            ttft_held=counters.ttft_held,
            itl_held=counters.itl_held,
            indexed_blobs=self._indexed_blobs(),
            metrics_address=self._metrics_address,
            limited_requests=counters.limited,
        )


async def _answer(call: Awaitable[Answer]) -> tuple[Answer | None, str]:
    try:
        return await call, ""
    except grpc.RpcError as error:
        told = errors.from_rpc_error(error)
        return None, f"{told.code.name}: {told.message}"
