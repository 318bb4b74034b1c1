"""Why tokens come slowly once they come: the handoff, preemption, the batch, contexts, the device.

The cost that a worker has learned of its own steps tells which of the last three it is: what the
step would take with one sequence alone, and what each sequence and each token of context add.
"""

from collections.abc import Sequence

from baton.doctor.finding import MANY, Finding, Severity, duration, percent
from baton.doctor.picture import DECODE, MIXED, PREFILL, Picture, Request, Steps, Worker, mean
from baton.doctor.rooflines import Bound, phase_rates

GAP = 0.5
"""Part of the time after the first token, from which on the handoff is to blame."""
PREEMPTED = 0.1
"""Moves for each request, from which on preemption is a problem: one costs as much as many
steps."""
BESIDE = 0.5
"""Part of the decode workers' time in steps that compute prompts, too, from which on those are to
blame."""


def stream_findings(picture: Picture) -> list[Finding]:
    """What makes streams slow; at most one finding, and one on preemption."""
    judged = [one for one in picture.requests if one.itl_target_s is not None and one.itl_s]
    slow = [one for one in judged if one.slow]
    share = len(slow) / len(judged) if judged else 0.0
    found = _preemption(picture, slow, share)
    if share <= MANY:
        return found or _running(picture)
    if found and found[0].severity is Severity.PROBLEM:
        return found
    return [*found, _blame(picture, slow, share)]


def _preemption(picture: Picture, slow: Sequence[Request], share: float) -> list[Finding]:
    preempted = sum(one.preempted for one in picture.workers)
    if not preempted:
        return []
    moved = sum(one.migrations > 0 for one in slow)
    seen = len(picture.requests) + picture.after.router.running_requests
    suffers = moved > PREEMPTED * len(slow) or preempted > PREEMPTED * seen
    used = max((one.blocks_used for one in picture.of_role(DECODE)), default=0.0)
    return [
        Finding(
            "stream.preemption",
            Severity.PROBLEM if suffers else Severity.WARNING,
            "Sequences are sent away in the middle since decode workers run out of KV blocks.",
            (
                f"{preempted} sequences were preempted in {duration(picture.seconds)}; "
                f"{moved} of {len(slow)} slow requests had moved",
                f"the fullest KV pool is used {percent(used)} now",
            ),
            (
                "Give workers more blocks: a larger `--kv-memory`.",
                "Hold fewer sequences at once: `--service-flag decode:--max-sequences=N` with "
                "fewer.",
                "Set more room aside for each: `--service-flag decode:--growth-tokens=N`, or 0 for "
                "all of it.",
                "Add decode workers: `baton up --decode N`.",
            ),
            max(share, PREEMPTED),
        )
    ]


def _blame(picture: Picture, slow: Sequence[Request], share: float) -> Finding:
    itl_s = mean([one.itl_s or 0.0 for one in slow])
    target_s = mean([one.itl_target_s or 0.0 for one in slow])
    gap_s, decoding_s = (mean([one.gap_s for one in slow]), mean([one.decoding_s for one in slow]))
    evidence = (
        f"{percent(share)} of streams missed their target: {duration(itl_s)} between tokens, the "
        f"target is {duration(target_s)}",
        f"a slow one's handoff took {duration(gap_s)}, the rest of its stream "
        f"{duration(decoding_s)}",
    )
    if gap_s > GAP * (gap_s + decoding_s):
        return _handoff(slow, evidence, share)
    return _steps(picture, target_s, evidence, share)


def _handoff(slow: Sequence[Request], evidence: tuple[str, ...], share: float) -> Finding:
    fetching_s, gap_s = mean([one.fetching_s for one in slow]), mean([one.gap_s for one in slow])
    missing = sum(one.missing_tokens for one in slow)
    known = (
        *evidence,
        f"{duration(fetching_s)} of it went into fetching KV; {missing} tokens of it were missing "
        "and computed again",
    )
    if fetching_s > GAP * gap_s or missing:
        return Finding(
            "stream.transfer",
            Severity.PROBLEM,
            "Streams are slow since KV takes long to come to the decode worker.",
            known,
            (
                "See whether the transfer service is slow or away: `baton status`, and its log.",
                "Keep both workers of a handoff on one host: fewer `--hosts`.",
                "Give published KV more room, so that none is lost: a larger `--shared-memory`.",
                "Compute short prompts where they decode: `--service-flag "
                "router:--disaggregation=auto`.",
            ),
            share,
        )
    return Finding(
        "stream.handoff",
        Severity.PROBLEM,
        "Streams are slow since the second token waits for a place at a decode worker.",
        known,
        (
            "Add decode workers: `baton up --decode N`.",
            "Compute short prompts where they decode: `--service-flag "
            "router:--disaggregation=auto`.",
        ),
        share,
    )


def _running(picture: Picture) -> list[Finding]:
    """Workers whose steps take longer than what runs there may take; nobody has ended yet."""
    worst: Worker | None = None
    for worker in picture.workers:
        steps = _decode_steps(worker)
        if worker.itl_target_s and steps.step_s > worker.itl_target_s:
            worst = worker
    if worst is None or worst.itl_target_s is None:
        return []
    steps = _decode_steps(worst)
    evidence = (
        f"{worst.worker_id}: steps take {duration(steps.step_s)}, what runs there may take "
        f"{duration(worst.itl_target_s)}",
    )
    return [_cause(picture, worst, steps, worst.itl_target_s, evidence, 1.0)]


def _steps(picture: Picture, target_s: float, evidence: tuple[str, ...], share: float) -> Finding:
    """A finding on the worker whose steps take longest."""
    workers = [one for one in picture.workers if _decode_steps(one).steps]
    if not workers:
        return Finding(
            "stream.unknown", Severity.PROBLEM, "Streams are slow, and no worker says why.",
            evidence, ("Look again while it is slow: `baton doctor --seconds 20`.",), share,
        )  # fmt: skip
    worst = max(workers, key=lambda one: _decode_steps(one).step_s)
    if _decode_steps(worst).step_s <= target_s:
        return _delivery(worst, evidence, share)
    return _cause(picture, worst, _decode_steps(worst), target_s, evidence, share)


def _delivery(worker: Worker, evidence: tuple[str, ...], share: float) -> Finding:
    step_s = duration(_decode_steps(worker).step_s)
    return Finding(
        "stream.delivery",
        Severity.PROBLEM,
        "Streams are slow although workers' steps are fast enough: tokens wait on their way, or "
        "for the handoff.",
        (*evidence, f"the slowest worker's steps take {step_s}"),
        (
            "Give the router a core of its own: fewer workers, or fewer `--threads` for each.",
            "Add routers where one is busy all the time: `baton up --routers N`.",
            "Ask for longer outputs at once: the handoff counts less the more tokens follow it.",
        ),
        share,
    )


def _cause(
    picture: Picture,
    worker: Worker,
    steps: Steps,
    target_s: float,
    evidence: tuple[str, ...],
    share: float,
) -> Finding:
    """The knob that would bring a step below the target: prompts beside it, the batch, contexts,
    or, where one sequence alone is too slow, the device."""
    cost = worker.cost
    one_s = cost.sequence_seconds + cost.context_token_seconds * steps.context
    alone_s = cost.base_seconds + one_s
    if worker.is_unpredictable or alone_s > steps.step_s:
        one_s = alone_s = steps.step_s / max(1.0, steps.batch)  # at best
    known = (
        *evidence,
        f"{worker.worker_id}: {steps.batch:.1f} sequences of {steps.context:.0f} tokens in a step "
        f"of {duration(steps.step_s)}; one alone would take {duration(alone_s)}",
    )
    mixed = worker.phases.get(MIXED, Steps())
    if mixed.busy_s > BESIDE * worker.busy_s:
        return _prompts_beside(picture, worker, mixed, known, share)
    by_context = cost.context_token_seconds * steps.context > cost.sequence_seconds
    if alone_s > target_s or steps.batch < 2:
        if cost.context_token_seconds * steps.context > cost.base_seconds:
            return _context(known, share)
        return _device(worker, known, share)
    return _context(known, share) if by_context and steps.batch < 4 else _batch(
        worker, target_s, alone_s, one_s, known, share
    )  # fmt: skip


def _batch(
    worker: Worker,
    target_s: float,
    alone_s: float,
    one_s: float,
    known: tuple[str, ...],
    share: float,
) -> Finding:
    fits = 1 + int((target_s - alone_s) / one_s) if one_s > 0 else worker.max_sequences
    fits = max(1, min(fits, worker.max_sequences))
    return Finding(
        "stream.batch_size",
        Severity.PROBLEM,
        "Streams are slow since too many sequences decode in one batch.",
        (*known, f"about {fits} sequences would be within the target"),
        (
            "Add decode workers: `baton up --decode N`.",
            f"Hold fewer sequences at once: `--service-flag decode:--max-sequences={fits}`.",
            "Give each request its `itl_target`, so that batches are kept small enough for it.",
        ),
        share,
    )


def _context(known: tuple[str, ...], share: float) -> Finding:
    return Finding(
        "stream.context",
        Severity.PROBLEM,
        "Streams are slow since attention over long contexts takes most of a step.",
        known,
        (
            "Add decode workers, so that fewer long contexts share a step: `baton up --decode N`.",
            "Send shorter prompts, or use a model with sliding windows.",
            "Halve the bytes of KV: `--dtype bfloat16`.",
        ),
        share,
    )


def _device(worker: Worker, known: tuple[str, ...], share: float) -> Finding:
    rates = [one for one in phase_rates(worker, 1.0) if one.phase in (DECODE, MIXED)]
    bandwidth = any(one.bound is Bound.BANDWIDTH for one in rates)
    if bandwidth:
        return Finding(
            "stream.bandwidth",
            Severity.PROBLEM,
            "Streams are slow since reading the weights once for each token takes that long here.",
            known,
            (
                "Read fewer bytes: `--dtype bfloat16`, or a smaller model.",
                "Give the worker more of the memory's bandwidth: `--threads N`, fewer workers on "
                "one machine.",
                "Allow it: `--service-flag router:--itl-interactive-s=S`.",
            ),
            share,
        )
    return Finding(
        "stream.overhead",
        Severity.PROBLEM,
        "Streams are slow although their steps are small: the time goes into what surrounds the "
        "computing.",
        known,
        (
            "Give the workers cores of their own: fewer workers, or `--threads` such that all of "
            "them fit the machine.",
            "Allow it: `--service-flag router:--itl-interactive-s=S`.",
        ),
        share,
    )


def _prompts_beside(
    picture: Picture, worker: Worker, mixed: Steps, known: tuple[str, ...], share: float
) -> Finding:
    smaller = max(1, worker.step_tokens // 2)
    advice = (
        f"Bound what a prompt adds to a step: `--service-flag decode:--max-step-tokens={smaller}`.",
        f"Let prefill workers compute prompts: `baton up --prefill {len(picture.of_role(PREFILL))}`"
        " or more, and `--service-flag router:--disaggregation=always`.",
    )
    beside = f"{mixed.prompt_tokens / max(1, mixed.steps):.0f} prompt tokens in such a step"
    return Finding(
        "stream.prompts",
        Severity.PROBLEM,
        "Streams are slow since prompts are computed in the same steps.",
        (*known, f"{percent(mixed.busy_s / worker.busy_s)} of the time is in them: {beside}"),
        advice,
        share,
    )


def _decode_steps(worker: Worker) -> Steps:
    """All steps in which sequences decoded."""
    found = [worker.phases.get(phase, Steps()) for phase in (DECODE, MIXED)]
    return Steps(
        steps=sum(one.steps for one in found),
        busy_s=sum(one.busy_s for one in found),
        sequences=sum(one.sequences for one in found),
        context_tokens=sum(one.context_tokens for one in found),
    )
