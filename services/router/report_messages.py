"""Reports of requests as protobuf messages. Pure functions, used at the router's doors only."""

from google.protobuf.timestamp_pb2 import Timestamp

from baton.v1 import inference_pb2
from services.common.durations import to_duration
from services.router.calls import FetchParts, PrefillParts
from services.router.dispatch import Placement
from services.router.messages import timings_message
from services.router.report import Outcome, Report

_OUTCOMES = {
    Outcome.COMPLETED: inference_pb2.REQUEST_OUTCOME_COMPLETED,
    Outcome.CANCELLED: inference_pb2.REQUEST_OUTCOME_CANCELLED,
    Outcome.REFUSED: inference_pb2.REQUEST_OUTCOME_REFUSED,
    Outcome.FAILED: inference_pb2.REQUEST_OUTCOME_FAILED,
}


def report_message(report: Report) -> inference_pb2.RequestReport:
    """What became of a request, for clients; it says nothing of prompts and outputs."""
    generation, placement, usage = report.generation, report.placement, report.usage
    urgency = generation.urgency
    return inference_pb2.RequestReport(
        request_id=report.request_id,
        trace_id=report.trace_id,
        tenant=urgency.tenant,
        arrival=_timestamp(report.arrival_s),
        outcome=_OUTCOMES[report.outcome],
        reason=report.reason,
        request_class=(
            inference_pb2.REQUEST_CLASS_BATCH
            if urgency.batch
            else inference_pb2.REQUEST_CLASS_INTERACTIVE
        ),
        usage=inference_pb2.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        choices=generation.choices,
        timings=timings_message(report.timings),
        targets=None if placement is None else _targets(placement),
        inter_token=None if report.itl_s is None else to_duration(report.itl_s),
        prefill=None if report.prefill is None else _prefill(report.prefill),
        fetch=_fetch(report.fetch),
        local=placement is not None and placement.local,
        degraded=placement is not None and placement.degraded,
    )


def running_message(report: Report) -> inference_pb2.RequestReport:
    """A request in progress, which has no outcome yet."""
    message = report_message(report)
    message.ClearField("outcome")
    return message


def _timestamp(seconds: float) -> Timestamp:
    message = Timestamp()
    message.FromMicroseconds(round(seconds * 1e6))
    return message


def _targets(placement: Placement) -> inference_pb2.Targets:
    itl_s = placement.itl_target_s
    return inference_pb2.Targets(
        ttft=to_duration(placement.ttft_target_s), itl=None if itl_s is None else to_duration(itl_s)
    )


def _prefill(parts: PrefillParts) -> inference_pb2.PrefillParts:
    return inference_pb2.PrefillParts(
        waiting=to_duration(parts.waiting_s),
        computing=to_duration(parts.computing_s),
        publishing=to_duration(parts.publishing_s),
        computed_tokens=parts.computed_tokens,
        published_bytes=parts.published_bytes,
    )


def _fetch(parts: FetchParts) -> inference_pb2.FetchParts:
    return inference_pb2.FetchParts(
        fetching=to_duration(parts.seconds), bytes=parts.bytes, missing_tokens=parts.missing_tokens
    )
