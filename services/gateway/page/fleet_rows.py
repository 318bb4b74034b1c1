"""The fleet as a router tells of it, made rows of JSON and samples. Pure functions."""

from collections.abc import Sequence

from baton.v1 import inference_pb2, worker_pb2
from baton.values import PHASES, ROLES, seconds
from services.gateway.page.history import Sample, Tokens
from services.gateway.page.rows import Row


def fleet_row(fleets: Sequence[inference_pb2.GetFleetResponse]) -> Row:
    """The fleet, as the first router knows it; what routers themselves do is added up."""
    first, routers = fleets[0], [fleet.router for fleet in fleets]
    names = [worker.record.model.name for worker in first.workers]
    return {
        "model": next(filter(None, names), ""),
        "routers": len(routers),
        "running": sum(router.running_requests for router in routers),
        "waiting": first.queue.waiting,
        "queued_work_s": seconds(first.queue.queued_work),
        "degraded": first.queue.degraded,
        "redis_available": first.queue.redis_available,
        "workers": [worker_row(one) for one in sorted(first.workers, key=_order)],
        "transfers": [_transfer_row(one) for one in first.transfers],
    }


def _order(worker: inference_pb2.FleetWorker) -> tuple[int, int, str]:
    worker_id = worker.record.worker_id
    return worker.record.role, len(worker_id), worker_id


def sample_of(at_s: float, fleets: Sequence[inference_pb2.GetFleetResponse]) -> Sample:
    """What charts need of one look."""
    return Sample(
        at_s=at_s,
        waiting=fleets[0].queue.waiting,
        running=sum(fleet.router.running_requests for fleet in fleets),
        tokens=_tokens(fleets[0]),
    )


def _tokens(fleet: inference_pb2.GetFleetResponse) -> Tokens:
    return {
        (worker.record.worker_id, worker.record.incarnation): (
            worker.status.prefilled_tokens,
            worker.status.sampled_tokens,
        )
        for worker in fleet.workers
        if worker.HasField("status")
    }


def _transfer_row(transfer: inference_pb2.FleetTransfer) -> Row:
    status = transfer.status
    return {
        "address": transfer.address,
        "state": "ready" if transfer.HasField("status") and not transfer.error else "no answer",
        "error": transfer.error,
        "blobs": status.blobs,
        "leased_blobs": status.leased_blobs,
        "used_bytes": sum(segment.used_bytes for segment in status.segments),
        "size_bytes": sum(segment.size_bytes for segment in status.segments),
    }


def worker_row(worker: inference_pb2.FleetWorker) -> Row:
    """A worker as the page's table shows it."""
    status, answered = worker.status, worker.HasField("status")
    record = status.record if answered and status.HasField("record") else worker.record
    load = record.load
    return {
        "id": record.worker_id,
        "role": ROLES.get(record.role, "unknown"),
        "state": _state(worker, record),
        "error": worker.error,
        "address": record.address,
        "dtype": status.dtype,
        "running": status.running_sequences,
        "waiting": status.waiting_sequences,
        "capacity": status.max_sequences or record.capacity.sequences,
        "sequence_limit": load.sequence_limit,
        "step_s": seconds(load.decode_step),
        "itl_target_s": seconds(load.itl_target) if load.HasField("itl_target") else None,
        "backlog_s": seconds(load.prompt_backlog),
        "context_tokens": load.context_tokens,
        "resident_bytes": status.resident_bytes,
        "kv": [_group_row(group) for group in status.kv_groups],
        "cost": _cost_row(record.cost) if record.HasField("cost") else None,
        "peaks": _peaks_row(status.peaks) if status.HasField("peaks") else None,
        "phases": [_phase_row(phase) for phase in status.phases],
        "preempted": status.preempted_sequences,
        "refused": status.refused_requests,
        "canary_drift": status.canary_drift if status.canaries else None,
    }


def _state(worker: inference_pb2.FleetWorker, record: worker_pb2.WorkerRecord) -> str:
    if not worker.HasField("status"):
        return "no answer"
    if worker.error:
        return "broken"
    return "draining" if record.draining else "ready"


def _group_row(group: worker_pb2.KvGroupStatus) -> Row:
    free = group.total_blocks - group.used_blocks - group.cached_blocks
    return {
        "name": group.name,
        "used": group.used_blocks,
        "cached": group.cached_blocks,
        "free": max(0, free),
        "total": group.total_blocks,
        "block_bytes": group.block_bytes,
    }


def _cost_row(cost: worker_pb2.StepCost) -> Row:
    return {
        "base_s": cost.base_seconds,
        "prompt_token_s": cost.prompt_token_seconds,
        "prompt_pair_s": cost.prompt_pair_seconds,
        "sequence_s": cost.sequence_seconds,
        "context_token_s": cost.context_token_seconds,
        "relative_error": cost.relative_error,
    }


def _peaks_row(peaks: worker_pb2.DevicePeaks) -> Row:
    return {"flops": peaks.flops_per_second, "bytes": peaks.bytes_per_second}


def _phase_row(phase: worker_pb2.PhaseWork) -> Row:
    return {
        "phase": PHASES.get(phase.phase, "unknown"),
        "steps": phase.steps,
        "busy_s": seconds(phase.busy),
        "flops": phase.flops,
        "bytes": phase.bytes,
        "sequences": phase.sequences,
        "prompt_tokens": phase.prompt_tokens,
    }
