"""Why first tokens come late: the queue, computing prompts, a cold cache, or moving KV."""

from collections.abc import Sequence

from baton.doctor.finding import MANY, Finding, Severity, duration, percent
from baton.doctor.picture import DECODE, PREFILL, Picture, Request, mean
from baton.values import seconds

BUSY = 0.7
"""Above it, queues in front of a server grow without bound in practice: at 0.7 a request waits
on average for more than two others' service."""
IDLING = 0.4
"""Below it, a worker in front of which requests wait is held up by something else than computing:
it idles more than it works, with work at its door."""
WARM = 0.3
"""Prompt tokens that were cached before, so that the cache was of use."""
COLD = 0.1
"""Prompt tokens that are cached now, so that it is of no use."""


def first_token_findings(picture: Picture) -> list[Finding]:
    """What makes first tokens late; at most one finding on requests that ended, and one on those
    that wait still."""
    answered = [one for one in picture.requests if one.answered and one.ttft_target_s is not None]
    late = [one for one in answered if one.late]
    share = len(late) / len(answered) if answered else 0.0
    if share > MANY:
        return [_blame(picture, late, share)]
    return _waiting(picture)


def _blame(picture: Picture, late: Sequence[Request], share: float) -> Finding:
    """A finding on the part that takes longest in late requests."""
    parts = {
        "queue": mean([one.queue_s for one in late]),
        "wait": mean([one.waiting_s for one in late]),
        "compute": mean([one.computing_s for one in late]),
        "publish": mean([one.publishing_s for one in late]),
        "calls": mean([one.calls_s for one in late]),
    }
    largest = max(parts, key=lambda name: parts[name])
    evidence = (
        f"{percent(share)} of {len(late) / share:.0f} requests missed their target; their first "
        f"token took {duration(mean([one.ttft_s for one in late]))}, the target is "
        f"{duration(mean([one.ttft_target_s or 0.0 for one in late]))}",
        "of that: " + ", ".join(f"{name} {duration(value)}" for name, value in parts.items()),
    )
    match largest:
        case "queue":
            return _queue(picture, evidence, share)
        case "wait":
            return _fetching(picture, evidence, share, parts["wait"])
        case "compute":
            return _computing(picture, late, evidence, share)
        case "publish":
            return _publishing(picture, evidence, share)
    return Finding(
        "first_token.elsewhere",
        Severity.PROBLEM,
        "First tokens are late on their way: between the router and the workers, or in attempts "
        "that failed.",
        (*evidence, f"{picture.routed('retried_legs')} calls were made again"),
        (
            "Look at the slowest requests' traces, and at the workers' logs for refused or broken "
            "calls.",
            "Give the router and the workers cores of their own: `baton up --threads` with fewer.",
        ),
        share,
    )


def _queue(picture: Picture, evidence: tuple[str, ...], share: float) -> Finding:
    busy = picture.busy(PREFILL) if picture.of_role(PREFILL) else picture.busy(DECODE)
    full = [one.worker_id for one in picture.of_role(DECODE) if one.is_full]
    if full and busy < BUSY:
        return Finding(
            "first_token.decode_room",
            Severity.PROBLEM,
            "First tokens are late since requests wait for room at the decode workers.",
            (*evidence, f"full: {', '.join(full)}; prefill workers are busy {percent(busy)}"),
            (
                "Add decode workers: `baton up --decode N`.",
                "Let each hold more: a larger `--kv-memory`, or `--service-flag "
                "decode:--max-sequences=N`.",
                "Where the inter-token target bounds the batch, loosen it: `--service-flag "
                "router:--itl-interactive-s=S`.",
            ),
            share,
        )
    if busy < IDLING:
        return Finding(
            "first_token.prefill_room",
            Severity.PROBLEM,
            "First tokens are late since requests wait in the queue although prefill workers have "
            "time: they have no room for more prompts at once.",
            (*evidence, f"prefill workers are busy {percent(busy)} of the time"),
            (
                "Let each hold more: a larger `--kv-memory`.",
                "Add prefill workers: `baton up --prefill N`.",
                "See whether handoffs are slow, which hold a prompt's KV until it is published.",
            ),
            share,
        )
    return Finding(
        "first_token.queue",
        Severity.PROBLEM,
        "First tokens are late since requests wait in the queue: more prompts come than the "
        "prefill workers can compute.",
        (*evidence, f"prefill workers are busy {percent(busy)} of the time"),
        _more_prefill(picture),
        share,
    )


def _computing(
    picture: Picture, late: Sequence[Request], evidence: tuple[str, ...], share: float
) -> Finding:
    prompts = sum(one.prompt_tokens for one in late)
    cached = sum(one.cached_tokens for one in late) / max(1, prompts)
    before = max((one.cached_before for one in picture.workers if one.answered), default=0.0)
    evicted = _evicted(picture)
    tenants = {one.tenant for one in late if one.tenant}
    known = (
        *evidence,
        f"{percent(cached)} of their prompt tokens were cached"
        + (f", {percent(before)} until then" if before >= WARM else ""),
    )
    if cached < COLD and (before >= WARM or evicted):
        return Finding(
            "first_token.cache_misses",
            Severity.PROBLEM,
            "First tokens are late since prompts are computed anew whose beginnings used to be "
            "cached, or were pushed out of the caches.",
            (*known, f"{evicted} blobs were evicted", f"{len(tenants)} tenants"),
            (
                "Put what prompts have in common at their beginning, the same to the letter.",
                "Keep more: a larger `--kv-memory` for workers' caches, a larger `--shared-memory` "
                "for what they share.",
                "Tenants share no cached KV: send what may be shared under one `tenant`.",
            ),
            share,
        )
    return Finding(
        "first_token.prefill_compute",
        Severity.PROBLEM,
        "First tokens are late since computing the prompts takes that long.",
        (*known, f"a late prompt has {prompts / len(late):.0f} tokens"),
        _more_prefill(picture),
        share,
    )


def _fetching(
    picture: Picture, evidence: tuple[str, ...], share: float, waiting_s: float
) -> Finding:
    fetching_s = sum(one.fetching_s for one in picture.of_role(PREFILL))
    return Finding(
        "first_token.transfer",
        Severity.PROBLEM,
        "First tokens are late since prefill workers wait for cached KV, or for room.",
        (
            *evidence,
            f"prefill workers waited {duration(fetching_s)} for KV in all, "
            f"a late request {duration(waiting_s)} before its first step",
        ),
        (
            "See whether the transfer service is slow or away: `baton status`, and its log.",
            "Keep workers that share prefixes on one host: fewer `--hosts`.",
            "Wait less for cached KV: `--service-flag prefill:--fetch-seconds=S`.",
        ),
        share,
    )


def _publishing(picture: Picture, evidence: tuple[str, ...], share: float) -> Finding:
    published = sum(one.published_bytes for one in picture.workers)
    return Finding(
        "first_token.publishing",
        Severity.PROBLEM,
        "First tokens are late since publishing the prompt's KV for the handoff takes long.",
        (*evidence, f"{published / 1e6:.1f} MB were published in {duration(picture.seconds)}"),
        (
            "Give published KV more room: a larger `--shared-memory`.",
            "See whether the transfer service is slow or away: `baton status`, and its log.",
            "Wait less for it: `--service-flag prefill:--publish-seconds=S`.",
        ),
        share,
    )


def _waiting(picture: Picture) -> list[Finding]:
    """A queue that is longer than targets allow although no late request has ended yet."""
    queue = picture.after.queue
    work_s = seconds(queue.queued_work)
    known = picture.requests or picture.earlier[-1:]
    targets = [one.ttft_target_s for one in known if one.ttft_target_s is not None]
    target_s = mean(targets) if targets else None
    workers = max(1, len(picture.of_role(PREFILL)) or len(picture.of_role(DECODE)))
    if not queue.waiting or target_s is None or work_s / workers <= target_s:
        return []
    evidence = (
        f"{queue.waiting} requests wait, with {duration(work_s)} of prompts for {workers} workers; "
        f"the target is {duration(target_s)}",
    )
    return [_queue(picture, evidence, 1.0)]


def _more_prefill(picture: Picture) -> tuple[str, ...]:
    workers = len(picture.of_role(PREFILL))
    first = (
        f"Add prefill workers: `baton up --prefill {workers + 1}`."
        if workers
        else f"Add workers: `baton up --prefill 1`, or `--decode {len(picture.workers) + 1}`."
    )
    return (
        first,
        "Give each more compute: `--threads N`; `--dtype bfloat16` where the device is fast at it.",
        "Compute larger chunks at a time: `--service-flag prefill:--max-step-tokens=N`.",
        "Let prompts begin alike, so that cached KV serves them.",
        "Refuse what can't be served in time instead of queueing it: a lower `--ttft-target`.",
    )


def _evicted(picture: Picture) -> int:
    """Blobs that transfer services evicted."""
    before = {one.address: one.status.evicted_blobs for one in picture.before.transfers}
    grown = [
        one.status.evicted_blobs - before.get(one.address, 0) for one in picture.after.transfers
    ]
    return sum(one for one in grown if one > 0)
