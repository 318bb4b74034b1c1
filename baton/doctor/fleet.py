"""What is wrong with the fleet itself, whatever the load: who is missing, refused, broken."""

from collections import Counter
from collections.abc import Iterator

from baton.doctor.finding import Finding, Severity, percent
from baton.doctor.picture import DECODE, PREFILL, Picture, Worker
from baton.drift import alarming_drift
from baton.v1 import inference_pb2

MANY_REFUSED = 0.05
"""Refused requests that are a problem, as a part of those that ended."""
JUDGED_STEPS = 50
"""Steps in a snapshot after which a cost has had its chance to settle."""


def fleet_findings(picture: Picture) -> list[Finding]:
    """All of it."""
    return [
        *_missing(picture),
        *_shared_state(picture),
        *_ended_badly(picture),
        *_transfers(picture),
        *(finding for worker in picture.workers for finding in _worker(worker)),
    ]


def _missing(picture: Picture) -> Iterator[Finding]:
    now = {one.worker_id for one in picture.workers}
    gone = sorted({one.record.worker_id for one in picture.before.workers} - now)
    silent = [one for one in picture.workers if not one.answered]
    if gone or silent:
        told = [f"{one.worker_id}: {one.error or 'no answer'}" for one in silent]
        yield Finding(
            "fleet.workers_missing",
            Severity.PROBLEM,
            f"{len(gone) + len(silent)} workers are missing.",
            (*(f"{name}: left the fleet" for name in gone), *told),
            ("Look at their logs; `baton up` starts a worker again that ended.",),
            1.0,
        )
    if not picture.workers:
        yield Finding(
            "fleet.no_workers",
            Severity.PROBLEM,
            "There are no workers.",
            (),
            ("Start them: `baton up`, or `python -m services.decode` and `services.prefill`.",),
            1.0,
        )


def _shared_state(picture: Picture) -> Iterator[Finding]:
    queue = picture.after.queue
    if queue.degraded:
        yield Finding(
            "fleet.degraded",
            Severity.PROBLEM,
            f"The fleet is degraded: {queue.degraded}.",
            (f"{picture.routed('degraded_requests')} requests were served so",),
            ("Start workers of the role that is gone: `baton up --prefill N --decode N`.",),
            0.9,
        )
    if not queue.redis_available:
        yield Finding(
            "fleet.redis_away",
            Severity.PROBLEM,
            "Redis does not answer: requests go to known workers directly, in no fair order.",
            (),
            ("Start Redis again, or see whether it is reachable (`--redis`).",),
            0.9,
        )


def _ended_badly(picture: Picture) -> Iterator[Finding]:
    refused, failed = picture.routed("refused_requests"), picture.routed("failed_requests")
    ended = refused + failed + picture.routed("completed_requests")
    reasons = Counter(one.reason for one in picture.requests if one.reason)
    told = tuple(f"{count} times {reason}" for reason, count in reasons.most_common(3))
    if refused:
        share = refused / max(1, ended)
        yield Finding(
            "fleet.refused",
            Severity.PROBLEM if share >= MANY_REFUSED else Severity.WARNING,
            "Requests are refused since their targets can't be held.",
            (f"{refused} of {ended} that ended ({percent(share)})", *told),
            (
                "Add workers of the role that is busy: `baton up --prefill N`, `--decode N`.",
                "Allow more time: `--ttft-target S`, `--service-flag router:--itl-interactive-s=S`,"
                " or send what can wait as `request_class` batch.",
            ),
            share,
        )
    if failed:
        yield Finding(
            "fleet.failed",
            Severity.PROBLEM if failed >= MANY_REFUSED * ended else Severity.WARNING,
            "Requests fail.",
            (f"{failed} of {ended} that ended", *told),
            ("Look at the router's and the workers' logs.",),
            failed / max(1, ended),
        )
    if limited := picture.routed("limited_requests"):
        yield Finding(
            "fleet.limited",
            Severity.WARNING,
            "Requests are refused by their tenants' limits.",
            (f"{limited} times",),
            ("Raise the tenants' limits where that is not meant.",),
        )


def _transfers(picture: Picture) -> Iterator[Finding]:
    before = {one.address: one.status for one in picture.before.transfers}
    for one in picture.after.transfers:
        if not one.HasField("status"):
            yield _transfer_problem("silent", one, f"does not answer: {one.error or 'no reason'}")
            continue
        corrupt = one.status.corrupt_blobs
        if one.address in before:
            corrupt -= before[one.address].corrupt_blobs
        if corrupt > 0:
            yield _transfer_problem("corrupt", one, f"had {corrupt} blobs with a wrong checksum")


def _transfer_problem(code: str, one: inference_pb2.FleetTransfer, what: str) -> Finding:
    return Finding(
        f"transfer.{code}",
        Severity.PROBLEM,
        f"The transfer service at {one.address} {what}.",
        (),
        ("Look at its log and at the host's memory; what it lost is computed again meanwhile.",),
        0.8,
    )


def _worker(worker: Worker) -> Iterator[Finding]:
    if worker.restarted:
        yield Finding(
            "fleet.restarted",
            Severity.WARNING,
            f"{worker.worker_id} has restarted: its cache is empty.",
            (),
            ("Look at the end of its earlier log.",),
        )
    if worker.draining:
        yield Finding("fleet.draining", Severity.INFO, f"{worker.worker_id} drains.")
    if worker.given_up > 0:
        yield Finding(
            "transfer.given_up",
            Severity.PROBLEM if worker.recomputed_handoffs else Severity.WARNING,
            f"{worker.worker_id} gave its transfer service up since it did not answer.",
            (
                f"{worker.given_up} times; {worker.recomputed_handoffs} handoffs were computed "
                "again",
            ),
            ("See whether the transfer service lives and has a core to run on.",),
            0.7,
        )
    steps = sum(one.steps for one in worker.phases.values())
    if worker.is_unpredictable and steps >= JUDGED_STEPS:
        yield _unreliable(worker)
    if worker.canary_drift > alarming_drift(worker.dtype):
        yield Finding(
            "transfer.drift",
            Severity.PROBLEM,
            f"KV that {worker.worker_id} was handed says other things than KV that it computes.",
            (f"log probabilities differ by up to {worker.canary_drift:.3g} in {worker.dtype}",),
            ("Take the worker out of service, and compare its model files with the others'.",),
            0.8,
        )


def _unreliable(worker: Worker) -> Finding:
    what = {PREFILL: "prompts", DECODE: "batches"}.get(worker.role, "steps")
    return Finding(
        "fleet.cost_unreliable",
        Severity.WARNING,
        f"{worker.worker_id} can't tell what its {what} will take: targets are promised blindly.",
        (f"its predictions are off by {percent(worker.cost.relative_error)}",),
        (
            "Give it cores that nobody else uses: fewer workers, or a smaller `--threads`.",
            "Measure longer at its start: `--service-flag worker:--warmup-seconds=S`.",
        ),
    )
