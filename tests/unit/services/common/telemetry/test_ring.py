"""The spans that a process remembers."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import StatusCode, set_span_in_context

from services.common.telemetry.ring import MOST_TOLD, SpanRing


@pytest.fixture
def ring():
    return SpanRing(capacity=6)


@pytest.fixture
def tracer(ring):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ring)
    return provider.get_tracer("test")


def trace_of(tracer, parts):
    """A trace of a root and its parts; its id."""
    root = tracer.start_span("root", start_time=100)
    for number in range(parts):
        inside = set_span_in_context(root)
        tracer.start_span(f"part-{number}", inside, start_time=200 + number).end(300)
    root.end(400)
    return root.get_span_context().trace_id.to_bytes(16, "big")


def test_spans_come_by_their_start_whenever_they_ended(ring, tracer):
    trace_id = trace_of(tracer, 2)
    spans = ring.spans([trace_id])
    assert [span.name for span in spans] == ["root", "part-0", "part-1"]
    root, first, _ = spans
    assert (root.start_ns, root.end_ns, root.parent_id) == (100, 400, b"")
    assert (first.parent_id, first.trace_id) == (root.span_id, trace_id)
    assert ring.spans([b"\1" * 16]) == []


def test_the_oldest_are_forgotten_and_counted(ring, tracer):
    first, second = trace_of(tracer, 3), trace_of(tracer, 3)
    assert (len(ring), ring.dropped) == (6, 2)
    assert [span.name for span in ring.spans([first])] == ["root", "part-2"]
    assert len(ring.spans([second, first])) == 6
    ring.check_integrity()
    for _ in range(5):
        trace_of(tracer, 2)
    assert ring.spans([first, second]) == []
    assert len(ring.trace_ids) == 2
    ring.check_integrity()


def test_what_a_span_says_is_kept(ring, tracer):
    span = tracer.start_span("x", attributes={"bytes": 5}, start_time=10)
    span.add_event("retry", {"worker": "w"}, timestamp=15)
    span.set_status(StatusCode.ERROR, "gone")
    span.end(20)
    (kept,) = ring.spans(ring.trace_ids)
    (moment,) = kept.moments
    assert (kept.attributes, kept.error) == ({"bytes": 5}, "gone")
    assert (moment.name, moment.at_ns, moment.attributes) == ("retry", 15, {"worker": "w"})


def test_of_very_many_spans_the_last_ones_are_told():
    ring = SpanRing()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ring)
    trace_id = trace_of(provider.get_tracer("test"), MOST_TOLD + 10)
    spans = ring.spans([trace_id])
    assert (len(spans), spans[-1].name) == (MOST_TOLD, f"part-{MOST_TOLD + 9}")
