"""Requests and spans as routers tell of them, made rows of JSON. Pure functions: with
`fleet_rows`, the page's door to protobuf."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from baton.v1 import inference_pb2, telemetry_pb2
from baton.values import seconds
from services.gateway.page.parts import Measured, Part, parts_of

Row = dict[str, Any]
"""An object of JSON."""

OUTCOMES = ("completed", "cancelled", "refused", "failed")
_OUTCOMES = {
    inference_pb2.REQUEST_OUTCOME_UNSPECIFIED: "running",
    inference_pb2.REQUEST_OUTCOME_COMPLETED: "completed",
    inference_pb2.REQUEST_OUTCOME_CANCELLED: "cancelled",
    inference_pb2.REQUEST_OUTCOME_REFUSED: "refused",
    inference_pb2.REQUEST_OUTCOME_FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that ended, or one in progress as if it had ended now."""

    ended_s: float
    """Seconds since 1970, by its router's clock."""
    outcome: str
    ttft_s: float | None
    """None: no token came."""
    itl_s: float | None
    ttft_target_s: float | None
    itl_target_s: float | None
    row: Row
    """All that the page shows of it."""

    @property
    def ttft_held(self) -> bool | None:
        """Whether the first token came in time; None: there was no target or no token."""
        return _held(self.ttft_s, self.ttft_target_s)

    @property
    def itl_held(self) -> bool | None:
        """Whether the mean inter-token latency held; None: there was no target or no second
        token."""
        return _held(self.itl_s, self.itl_target_s)

    @property
    def good(self) -> bool:
        """Whether it completed and missed no target."""
        missed = self.ttft_held is False or self.itl_held is False
        return self.outcome == "completed" and not missed


def _held(took_s: float | None, target_s: float | None) -> bool | None:
    return None if took_s is None or target_s is None else took_s <= target_s


def ended(report: inference_pb2.RequestReport) -> Ended:
    """A report as the page keeps it."""
    timings = report.timings
    total_s = seconds(timings.total)
    any_token = report.usage.completion_tokens > 0
    ttft_s = seconds(timings.time_to_first_token) if any_token else None
    itl_s = seconds(report.inter_token) if report.HasField("inter_token") else None
    has_itl = report.HasField("targets") and report.targets.HasField("itl")
    ttft_target_s = seconds(report.targets.ttft) if report.HasField("targets") else None
    itl_target_s = seconds(report.targets.itl) if has_itl else None
    arrival_s = _moment(report.arrival)
    value = Ended(
        ended_s=arrival_s + total_s,
        outcome=_OUTCOMES.get(report.outcome, "failed"),
        ttft_s=ttft_s,
        itl_s=itl_s,
        ttft_target_s=ttft_target_s,
        itl_target_s=itl_target_s,
        row={},
    )
    value.row.update(_request_row(value, report, arrival_s, total_s, parts_of(_measured(report))))
    return value


def _measured(report: inference_pb2.RequestReport) -> Measured:
    timings, prefill = report.timings, report.prefill
    return Measured(
        total_s=seconds(timings.total),
        queue_s=seconds(timings.queue),
        prefill_s=seconds(timings.prefill),
        first_token=report.usage.completion_tokens > 0,
        handoff_s=seconds(timings.handoff_gap) if timings.HasField("handoff_gap") else None,
        waiting_s=seconds(prefill.waiting),
        computing_s=seconds(prefill.computing),
        publishing_s=seconds(prefill.publishing),
    )


def _request_row(
    value: Ended,
    report: inference_pb2.RequestReport,
    arrival_s: float,
    total_s: float,
    parts: tuple[Part, ...],
) -> Row:
    timings, usage = report.timings, report.usage
    batch = report.request_class == inference_pb2.REQUEST_CLASS_BATCH
    return {
        "id": report.request_id,
        "trace_id": report.trace_id.hex(),
        "tenant": report.tenant,
        "class": "batch" if batch else "interactive",
        "outcome": value.outcome,
        "reason": report.reason,
        "arrival_s": arrival_s,
        "total_s": total_s,
        "ttft_s": value.ttft_s,
        "itl_s": value.itl_s,
        "ttft_target_s": value.ttft_target_s,
        "itl_target_s": value.itl_target_s,
        "ttft_held": value.ttft_held,
        "itl_held": value.itl_held,
        "predicted_ttft_s": seconds(timings.predicted_ttft),
        "predicted_itl_s": seconds(timings.predicted_itl),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "choices": report.choices,
        "prefill_worker": timings.prefill_worker,
        "decode_worker": timings.decode_worker,
        "prefill_attempts": timings.prefill_attempts,
        "decode_attempts": timings.decode_attempts,
        "migrations": timings.migrations,
        "local": report.local,
        "degraded": report.degraded,
        "fetch_s": seconds(report.fetch.fetching),
        "fetch_bytes": report.fetch.bytes,
        "parts": [asdict(part) for part in parts],
    }


def span_rows(spans: Iterable[telemetry_pb2.Span]) -> list[Row]:
    """The spans of a trace, by their start; times from the first one's start on."""
    known = sorted(spans, key=lambda span: span.start.ToNanoseconds())
    zero = known[0].start.ToNanoseconds() if known else 0
    return [
        {
            "id": span.span_id.hex(),
            "parent": span.parent_span_id.hex(),
            "name": span.name,
            "process": span.process,
            "start_s": (span.start.ToNanoseconds() - zero) / 1e9,
            "seconds": seconds(span.duration),
            "error": span.error,
            "attributes": dict(span.attributes),
            "events": [
                {"name": one.name, "at_s": seconds(one.offset), "attributes": dict(one.attributes)}
                for one in span.events
            ],
        }
        for span in known
    ]


def _moment(timestamp: Timestamp) -> float:
    return timestamp.seconds + timestamp.nanos / 1e9
