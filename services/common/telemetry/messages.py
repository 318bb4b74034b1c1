"""Spans as messages."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from baton.v1 import telemetry_pb2
from services.common.telemetry.ring import EndedSpan


def span_message(span: EndedSpan, process: str) -> telemetry_pb2.Span:
    """`span`, of the process of that name."""
    start = Timestamp()
    start.FromNanoseconds(span.start_ns)
    return telemetry_pb2.Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        name=span.name,
        process=process,
        start=start,
        duration=_duration(span.end_ns - span.start_ns),
        attributes=_texts(span.attributes),
        events=[
            telemetry_pb2.SpanEvent(
                name=moment.name,
                offset=_duration(moment.at_ns - span.start_ns),
                attributes=_texts(moment.attributes),
            )
            for moment in span.moments
        ],
        error=span.error,
    )


def _duration(nanoseconds: int) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(nanoseconds)
    return duration


def _texts(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in attributes.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple | list):
        return ", ".join(map(_text, value))
    return str(value)
