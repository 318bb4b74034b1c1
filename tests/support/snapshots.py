"""Snapshots of fleets for the doctor's tests: a healthy one, and what is changed about it."""

from baton.doctor.snapshot import Snapshot
from baton.v1 import inference_pb2, transfer_pb2, worker_pb2
from services.common.durations import to_duration

SECONDS = 10.0
PEAK_FLOPS, PEAK_BYTES = 1e12, 1e10
ROLES = {
    "prefill": worker_pb2.WORKER_ROLE_PREFILL,
    "decode": worker_pb2.WORKER_ROLE_DECODE,
}
COST = {
    "base_seconds": 0.005,
    "sequence_seconds": 0.0005,
    "context_token_seconds": 1e-7,
    "relative_error": 0.1,
}
"""Of a worker whose steps take 5 ms and half a millisecond for each sequence."""


def report(
    number=0, *, queue=0.01, waiting=0.001, computing=0.05, publishing=0.005, other=0.002,
    gap=0.02, tokens=11, itl=0.01, ttft_target=2.0, itl_target=0.2, prompt=1000, cached=0,
    fetching=0.005, missing=0, migrations=0, tenant="", reason="", outcome=None,
):  # fmt: skip
    """A request that completed within its targets."""
    prefill = waiting + computing + publishing + other
    ttft = queue + prefill
    completed = inference_pb2.REQUEST_OUTCOME_COMPLETED
    return inference_pb2.RequestReport(
        request_id=f"r-{number}",
        tenant=tenant,
        outcome=completed if outcome is None else outcome,
        reason=reason,
        usage=inference_pb2.Usage(
            prompt_tokens=prompt, cached_tokens=cached, completion_tokens=tokens
        ),
        timings=inference_pb2.Timings(
            queue=to_duration(queue),
            prefill=to_duration(prefill),
            time_to_first_token=to_duration(ttft),
            handoff_gap=to_duration(gap),
            total=to_duration(ttft + itl * max(0, tokens - 1)),
            migrations=migrations,
        ),
        targets=inference_pb2.Targets(ttft=to_duration(ttft_target), itl=to_duration(itl_target)),
        inter_token=to_duration(itl),
        prefill=inference_pb2.PrefillParts(
            waiting=to_duration(waiting),
            computing=to_duration(computing),
            publishing=to_duration(publishing),
        ),
        fetch=inference_pb2.FetchParts(fetching=to_duration(fetching), missing_tokens=missing),
    )


def phase(kind, *, steps=1000, busy=5.0, flops=1e10, moved=1e10, prompt=0, sequences=0, context=0):
    return worker_pb2.PhaseWork(
        phase=getattr(worker_pb2, f"STEP_PHASE_{kind.upper()}"),
        steps=steps,
        busy=to_duration(busy),
        flops=flops,
        bytes=moved,
        prompt_tokens=prompt,
        sequences=sequences,
        context_tokens=context,
    )


def worker(name, *, phases=(), cost=None, record=None, error="", **status):
    """A worker called after its role, such as `decode-0`, that answers."""
    known = {
        "max_sequences": 32,
        "dtype": "bfloat16",
        "peaks": worker_pb2.DevicePeaks(flops_per_second=PEAK_FLOPS, bytes_per_second=PEAK_BYTES),
        "phases": phases,
    }
    told = {
        "worker_id": name,
        "incarnation": "1",
        "role": ROLES[name.partition("-")[0]],
        "capacity": {"sequences": 32},
        "cost": COST | (cost or {}),
        "step_tokens": 256,
    }
    return inference_pb2.FleetWorker(
        record=worker_pb2.WorkerRecord(**(told | (record or {}))),
        status=None if error else worker_pb2.GetWorkerStatusResponse(**(known | status)),
        error=error,
    )


def transfer(address="t:1", **status):
    return inference_pb2.FleetTransfer(
        address=address, status=transfer_pb2.GetTransferStatusResponse(**status)
    )


def fleet(workers=None, transfers=None, *, queue=None, **router):
    """One worker of each role, unless told otherwise."""
    return inference_pb2.GetFleetResponse(
        workers=[worker("prefill-0"), worker("decode-0")] if workers is None else workers,
        transfers=[transfer()] if transfers is None else transfers,
        queue=inference_pb2.QueueStatus(**({"redis_available": True} | (queue or {}))),
        router=inference_pb2.RouterStatus(**router),
    )


def snapshot(after=None, requests=(), *, before=None, earlier=()):
    """Of ten seconds, in which all happened that `after` counts."""
    return Snapshot(SECONDS, before or fleet(), after or fleet(), tuple(requests), tuple(earlier))
