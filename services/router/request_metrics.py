"""What the router's metrics tell of requests, from the reports of those that ended.

A request's class is `interactive` or `batch`. Latencies are those of requests that had a token;
each bucket names the last trace that fell into it.
"""

from collections import Counter

from services.common.telemetry.metric import Reading, Source, counter, gauge, histogram
from services.common.telemetry.tally import (
    BYTES_BUCKETS,
    RATIO_BUCKETS,
    SECONDS_BUCKETS,
    TOKENS_BUCKETS,
    Tallies,
)
from services.router.report import Outcome, Report
from services.router.request import ClassTargets

TTFT = histogram(
    "baton_router_ttft_seconds",
    "Time to first token: from the arrival, as clients see it.",
    "class",
)
ITL = histogram(
    "baton_router_itl_seconds", "Mean inter-token latency of a request, over its choices.", "class"
)
TOKEN_GAP = histogram(
    "baton_router_token_gap_seconds",
    "Each gap between two tokens of a choice; tokens that came together count 0.",
    "class",
)
PER_OUTPUT_TOKEN = histogram(
    "baton_router_time_per_output_token_seconds",
    "Of completed requests: all of its time, by the tokens of all its choices.",
    "class",
)
QUEUE = histogram(
    "baton_router_queue_seconds", "From the arrival to the turn: tokenizing and waiting.", "class"
)
PREFILL = histogram(
    "baton_router_prefill_seconds",
    "From the turn to the first token. With the queue it adds up to the time to first token.",
    "class",
)
PREFILL_PART = histogram(
    "baton_router_prefill_part_seconds",
    "Parts of it as the prefill worker measured them: waiting, computing, publishing.",
    "part",
)
HANDOFF_GAP = histogram(
    "baton_router_handoff_gap_seconds",
    "From the first to the second token, where a handoff lay between them.",
    "class",
)
FETCH = histogram(
    "baton_router_fetch_seconds", "What decode workers waited for a request's KV; where they did."
)
FETCH_BYTES = histogram("baton_router_fetch_bytes", "KV that decode workers fetched for a request.")
RECOMPUTED_TOKENS = counter(
    "baton_router_recomputed_tokens_total",
    "Tokens that were handed over and had to be computed again, since their KV did not come.",
)
DURATION = histogram(
    "baton_router_request_seconds", "From the arrival to the end of completed requests.", "class"
)
PROMPT = histogram("baton_router_prompt_tokens", "Prompt tokens of a request.", "class")
OUTPUT = histogram(
    "baton_router_output_tokens", "Output tokens of a request, over its choices.", "class"
)
CACHED = counter(
    "baton_router_cached_tokens_total", "Prompt tokens that no one had to compute.", "class"
)
ACCEPTED = counter(
    "baton_router_accepted_requests_total",
    "Requests that were valid, by how they ended: completed, cancelled, refused, failed.",
    *("class", "outcome"),
)
TTFT_JUDGED = counter(
    "baton_router_ttft_judged_requests_total",
    "Completed requests, by whether the first token came within its target (held: yes, no).",
    *("class", "held"),
)
ITL_JUDGED = counter(
    "baton_router_itl_judged_requests_total",
    "Completed requests, by whether the mean inter-token latency was within its target.",
    *("class", "held"),
)
GOOD_REQUESTS = counter(
    "baton_router_good_requests_total",
    "Goodput: completed requests within both targets, or without one.",
    "class",
)
GOOD_TOKENS = counter(
    "baton_router_good_output_tokens_total", "Goodput: output tokens of those requests.", "class"
)
TTFT_RATIO = histogram(
    "baton_router_ttft_actual_to_predicted_ratio",
    "Time to first token, by what it was predicted to be when the request was placed first.",
)
ITL_RATIO = histogram(
    "baton_router_itl_actual_to_predicted_ratio",
    "Mean inter-token latency, by what it was predicted to be where the request was placed last.",
)
TTFT_TARGET = gauge(
    "baton_router_ttft_target_seconds",
    "Time to first token that requests are to hold which give no target. Long prompts get more.",
    "class",
    stands=True,
)
ITL_TARGET = gauge(
    "baton_router_itl_target_seconds",
    "Inter-token latency that requests are to hold which give no target.",
    "class",
    stands=True,
)

_BY_SECONDS = (TTFT, ITL, TOKEN_GAP, PER_OUTPUT_TOKEN, QUEUE, PREFILL, PREFILL_PART, HANDOFF_GAP)
_BOUNDS = (
    dict.fromkeys((*_BY_SECONDS, FETCH, DURATION), SECONDS_BUCKETS)
    | dict.fromkeys((PROMPT, OUTPUT), TOKENS_BUCKETS)
    | dict.fromkeys((TTFT_RATIO, ITL_RATIO), RATIO_BUCKETS)
    | {FETCH_BYTES: BYTES_BUCKETS}
)
_COUNTERS = (
    *(RECOMPUTED_TOKENS, CACHED, ACCEPTED, TTFT_JUDGED, ITL_JUDGED, GOOD_REQUESTS, GOOD_TOKENS),
)
METRICS = (*_BOUNDS, *_COUNTERS, TTFT_TARGET, ITL_TARGET)

_CLASSES = ("interactive", "batch")
_HELD = {True: "yes", False: "no"}


class RequestMetrics:
    """Counts what became of requests: `record` is a sink of reports."""

    def __init__(self, targets: ClassTargets) -> None:
        self._targets = targets
        self._seen = {metric: Tallies(bounds) for metric, bounds in _BOUNDS.items()}
        self._counts = {metric: Counter[tuple[str, ...]]() for metric in _COUNTERS}
        self._begin()

    def source(self) -> Source:
        """Reads the metrics of this module."""
        return Source("requests", self._read, METRICS)

    def record(self, report: Report) -> None:
        """Counts a request that ended."""
        of_class = ("batch" if report.generation.urgency.batch else "interactive",)
        self._counts[ACCEPTED][*of_class, report.outcome.value] += 1
        if report.placement is not None:
            self._seen[QUEUE][of_class].observe(report.timings.queue, report.trace_id)
        if report.usage.completion_tokens:
            self._latencies(report, of_class)
            self._sizes(report, of_class)
            self._predictions(report)
        if report.outcome is Outcome.COMPLETED:
            self._completed(report, of_class)

    def _latencies(self, report: Report, of_class: tuple[str]) -> None:
        timings, trace_id, seen = report.timings, report.trace_id, self._seen
        seen[TTFT][of_class].observe(timings.time_to_first_token, trace_id)
        seen[PREFILL][of_class].observe(timings.prefill, trace_id)
        seen[TOKEN_GAP][of_class].add(report.gaps)
        if report.itl_s is not None:
            seen[ITL][of_class].observe(report.itl_s, trace_id)
        if timings.handoff_gap is not None:
            seen[HANDOFF_GAP][of_class].observe(timings.handoff_gap, trace_id)
        if (parts := report.prefill) is not None:
            seen[PREFILL_PART][("waiting",)].observe(parts.waiting_s, trace_id)
            seen[PREFILL_PART][("computing",)].observe(parts.computing_s, trace_id)
            seen[PREFILL_PART][("publishing",)].observe(parts.publishing_s, trace_id)
        if report.fetch.bytes:
            seen[FETCH][()].observe(report.fetch.seconds, trace_id)
            seen[FETCH_BYTES][()].observe(report.fetch.bytes)
        self._counts[RECOMPUTED_TOKENS][()] += report.fetch.missing_tokens

    def _sizes(self, report: Report, of_class: tuple[str]) -> None:
        usage = report.usage
        self._seen[PROMPT][of_class].observe(usage.prompt_tokens)
        self._seen[OUTPUT][of_class].observe(usage.completion_tokens)
        self._counts[CACHED][of_class] += usage.cached_tokens

    def _predictions(self, report: Report) -> None:
        timings = report.timings
        if report.generation.resumed:  # what was predicted is not what is measured
            return
        if timings.predicted_ttft > 0:
            ratio = timings.time_to_first_token / timings.predicted_ttft
            self._seen[TTFT_RATIO][()].observe(ratio, report.trace_id)
        if timings.predicted_itl > 0 and report.itl_s is not None:
            ratio = report.itl_s / timings.predicted_itl
            self._seen[ITL_RATIO][()].observe(ratio, report.trace_id)

    def _completed(self, report: Report, of_class: tuple[str]) -> None:
        tokens, total_s = report.usage.completion_tokens, report.timings.total
        self._seen[DURATION][of_class].observe(total_s, report.trace_id)
        if tokens:
            each_s = total_s / tokens
            self._seen[PER_OUTPUT_TOKEN][of_class].observe(each_s, report.trace_id)
        if report.placement is None:  # there was nothing to do
            return
        held = report.ttft_held is not False, report.itl_held is not False
        for metric, one in zip((TTFT_JUDGED, ITL_JUDGED), held, strict=True):
            self._counts[metric][*of_class, _HELD[one]] += 1
        if all(held):
            self._counts[GOOD_REQUESTS][of_class] += 1
            self._counts[GOOD_TOKENS][of_class] += tokens

    def _begin(self) -> None:
        """All series are there from the start: what is told first must not be taken for 0."""
        for one in _CLASSES:
            for outcome in Outcome:
                self._counts[ACCEPTED][one, outcome.value] += 0
            for held in _HELD.values():
                self._counts[TTFT_JUDGED][one, held] += 0
                self._counts[ITL_JUDGED][one, held] += 0
            for metric in (CACHED, GOOD_REQUESTS, GOOD_TOKENS):
                self._counts[metric][(one,)] += 0
        self._counts[RECOMPUTED_TOKENS][()] += 0
        for metric, tallies in self._seen.items():
            for one in _CLASSES if metric.labels == ("class",) else ():
                _ = tallies[(one,)]

    async def _read(self) -> list[Reading]:
        targets = self._targets
        counts = [
            metric.at(count, *labels)
            for metric, by_labels in self._counts.items()
            for labels, count in by_labels.items()
        ]
        return [
            *counts,
            *(one for metric, tallies in self._seen.items() for one in metric.each(tallies)),
            TTFT_TARGET.at(targets.interactive_ttft_s, "interactive"),
            TTFT_TARGET.at(targets.batch_ttft_s, "batch"),
            ITL_TARGET.at(targets.interactive_itl_s, "interactive"),
            ITL_TARGET.at(targets.batch_itl_s, "batch"),
        ]
