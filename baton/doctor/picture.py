"""A snapshot as values: what happened in its seconds, to each request and in each worker."""

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from baton.doctor.snapshot import Snapshot
from baton.v1 import inference_pb2, worker_pb2
from baton.values import PHASES, ROLES, seconds

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"

UNRELIABLE = 0.5
"""Mean relative error of predicted steps from which on places are guessed, not planned."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Latencies by which to judge, in place of the targets that requests had."""

    ttft_s: float | None = None
    itl_s: float | None = None


AS_ASKED = Wanted()
"""By the requests' own targets."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that ended; times in seconds."""

    reason: str
    tenant: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float
    waiting_s: float
    """For room, and for KV from a cache, at the prefill worker."""
    computing_s: float
    publishing_s: float
    calls_s: float
    """Of the time to first token: on the way, and in attempts that failed."""
    ttft_s: float
    ttft_target_s: float | None
    gap_s: float
    """From the first token to the second; 0 where there was no handoff."""
    fetching_s: float
    decoding_s: float
    """From the second token, or the first, to the end."""
    itl_s: float | None
    itl_target_s: float | None
    migrations: int
    missing_tokens: int

    @property
    def answered(self) -> bool:
        """Whether a token came."""
        return self.output_tokens > 0

    @property
    def late(self) -> bool:
        """Whether its first token missed its target."""
        target = self.ttft_target_s
        return self.answered and target is not None and self.ttft_s > target

    @property
    def slow(self) -> bool:
        """Whether its stream missed its target."""
        target, itl = self.itl_target_s, self.itl_s
        return target is not None and itl is not None and itl > target


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one phase in the snapshot's seconds."""

    steps: int = 0
    busy_s: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    prompt_tokens: int = 0
    sequences: int = 0
    context_tokens: int = 0

    @property
    def step_s(self) -> float:
        """Mean time of a step."""
        return self.busy_s / self.steps if self.steps else 0.0

    @property
    def batch(self) -> float:
        """Mean number of sequences that decoded."""
        return self.sequences / self.steps if self.steps else 0.0

    @property
    def context(self) -> float:
        """Mean tokens in the context of one of them."""
        return self.context_tokens / self.sequences if self.sequences else 0.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, and what it did in the snapshot's seconds."""

    worker_id: str
    role: str
    error: str
    """Why it did not answer, or what is broken; empty: nothing."""
    answered: bool
    draining: bool
    restarted: bool
    running: int
    max_sequences: int
    sequence_limit: int
    """Sequences that it would take so that targets hold; 0: as many as it can."""
    held_sequences: int
    itl_target_s: float | None
    """The tightest of what it runs."""
    cost: worker_pb2.StepCost
    step_tokens: int
    phases: dict[str, Steps]
    peak_flops: float
    peak_bytes: float
    """0: not measured."""
    cached_before: float
    """Part of the prompt tokens that was cached until the snapshot began."""
    preempted: int
    recomputed_handoffs: int
    fetching_s: float
    published_bytes: int
    given_up: int
    blocks_used: float
    """Part of the blocks of the fullest KV group."""
    dtype: str
    canary_drift: float

    @property
    def busy_s(self) -> float:
        """Time in steps."""
        return sum(one.busy_s for one in self.phases.values())

    @property
    def is_unpredictable(self) -> bool:
        """Whether its cost is so far off that nothing can be told by it."""
        return self.cost.relative_error > UNRELIABLE

    @property
    def is_full(self) -> bool:
        """Whether it holds as many sequences as it takes now."""
        limit = self.sequence_limit or self.max_sequences
        return 0 < limit <= self.held_sequences


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it."""

    seconds: float
    requests: tuple[Request, ...]
    earlier: tuple[Request, ...]
    workers: tuple[Worker, ...]
    before: inference_pb2.GetFleetResponse
    after: inference_pb2.GetFleetResponse

    @classmethod
    def of(cls, snapshot: Snapshot, wanted: Wanted = AS_ASKED) -> "Picture":
        """What a snapshot shows, judged by what is `wanted`."""
        known = {one.record.worker_id: one for one in snapshot.before.workers}
        return cls(
            seconds=max(1e-9, snapshot.seconds),
            requests=tuple(_request(one, wanted) for one in snapshot.requests),
            earlier=tuple(_request(one, wanted) for one in snapshot.earlier),
            workers=tuple(
                _worker(one, known.get(one.record.worker_id), wanted)
                for one in snapshot.after.workers
            ),
            before=snapshot.before,
            after=snapshot.after,
        )

    def of_role(self, role: str) -> list[Worker]:
        """The workers of a role that answer."""
        return [one for one in self.workers if one.role == role and one.answered]

    def busy(self, role: str) -> float:
        """Part of the time that the workers of a role were in steps; 0 where there are none."""
        return mean([one.busy_s / self.seconds for one in self.of_role(role)])

    def routed(self, counter: str) -> int:
        """By how much a counter of the router grew."""
        before, after = getattr(self.before.router, counter), getattr(self.after.router, counter)
        return int(after - before if after >= before else after)


def mean(values: Sequence[float]) -> float:
    """0 where there is none."""
    return sum(values) / len(values) if values else 0.0


def _request(report: inference_pb2.RequestReport, wanted: Wanted) -> Request:
    timings, parts = report.timings, report.prefill
    has_parts = report.HasField("prefill")
    prefill_s = seconds(timings.prefill)
    waiting_s, publishing_s = seconds(parts.waiting), seconds(parts.publishing)
    computing_s = seconds(parts.computing) if has_parts else prefill_s
    ttft_s, gap_s = seconds(timings.time_to_first_token), seconds(timings.handoff_gap)
    targets = report.targets
    return Request(
        reason=report.reason,
        tenant=report.tenant,
        prompt_tokens=report.usage.prompt_tokens,
        cached_tokens=report.usage.cached_tokens,
        output_tokens=report.usage.completion_tokens,
        queue_s=seconds(timings.queue),
        waiting_s=waiting_s,
        computing_s=computing_s,
        publishing_s=publishing_s,
        calls_s=max(0.0, prefill_s - waiting_s - computing_s - publishing_s),
        ttft_s=ttft_s,
        ttft_target_s=wanted.ttft_s or _optional(targets, "ttft"),
        gap_s=gap_s,
        fetching_s=seconds(report.fetch.fetching),
        decoding_s=max(0.0, seconds(timings.total) - ttft_s - gap_s),
        itl_s=_optional(report, "inter_token"),
        itl_target_s=wanted.itl_s or _optional(targets, "itl"),
        migrations=timings.migrations,
        missing_tokens=report.fetch.missing_tokens,
    )


def _optional(message: Message, field: str) -> float | None:
    """A duration in seconds; None where it is absent."""
    return seconds(getattr(message, field)) if message.HasField(field) else None


def _worker(
    after: inference_pb2.FleetWorker, before: inference_pb2.FleetWorker | None, wanted: Wanted
) -> Worker:
    record, status = after.record, after.status
    restarted = before is not None and before.record.incarnation != record.incarnation
    known = before is not None and not restarted and before.HasField("status")
    old = before.status if known and before else worker_pb2.GetWorkerStatusResponse()
    prompts = old.cached_tokens + old.prefilled_tokens
    return Worker(
        worker_id=record.worker_id,
        role=ROLES.get(record.role, "unknown"),
        error=after.error,
        answered=after.HasField("status"),
        draining=record.draining,
        restarted=restarted,
        running=status.running_sequences,
        max_sequences=status.max_sequences or record.capacity.sequences,
        sequence_limit=record.load.sequence_limit,
        held_sequences=record.running.sequences,
        itl_target_s=wanted.itl_s or _optional(record.load, "itl_target"),
        cost=record.cost,
        step_tokens=record.step_tokens,
        phases=_phases(old, status),
        peak_flops=status.peaks.flops_per_second,
        peak_bytes=status.peaks.bytes_per_second,
        cached_before=old.cached_tokens / prompts if prompts else 0.0,
        preempted=status.preempted_sequences - old.preempted_sequences,
        recomputed_handoffs=status.recomputed_handoffs - old.recomputed_handoffs,
        fetching_s=seconds(status.fetching) - seconds(old.fetching),
        published_bytes=status.published_bytes - old.published_bytes,
        given_up=status.transfer_given_up - old.transfer_given_up,
        blocks_used=max(
            (one.used_blocks / max(1, one.total_blocks) for one in status.kv_groups), default=0.0
        ),
        dtype=status.dtype,
        canary_drift=status.canary_drift,
    )


def _phases(
    old: worker_pb2.GetWorkerStatusResponse, new: worker_pb2.GetWorkerStatusResponse
) -> dict[str, Steps]:
    """The phases in which there was a step."""
    begun = {one.phase: one for one in old.phases}
    phases = {}
    for one in new.phases:
        was = begun.get(one.phase, worker_pb2.PhaseWork())
        if one.phase in PHASES and one.steps > was.steps:
            phases[PHASES[one.phase]] = Steps(
                steps=one.steps - was.steps,
                busy_s=seconds(one.busy) - seconds(was.busy),
                flops=one.flops - was.flops,
                bytes=one.bytes - was.bytes,
                prompt_tokens=one.prompt_tokens - was.prompt_tokens,
                sequences=one.sequences - was.sequences,
                context_tokens=one.context_tokens - was.context_tokens,
            )
    return phases
