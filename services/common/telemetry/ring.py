"""The spans that ended lately, in memory, by trace.

Whatever is exported, a process can be asked for what it remembers. Bounded: the oldest spans
are forgotten first, and counted. Knows no wire.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import StatusCode

TraceId = bytes
"""16 bytes."""

CAPACITY = 10_000
"""In well under ten megabytes."""
MOST_TOLD = 2_000
"""Spans in one answer: callers choose their traces, and may put any number of requests in one."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SpanMoment:
    """A moment in a span."""

    name: str
    at_ns: int
    """Nanoseconds since 1970."""
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EndedSpan:
    """A span, as it is remembered."""

    trace_id: TraceId
    span_id: bytes
    parent_id: bytes
    """Empty: of none."""
    name: str
    start_ns: int
    """Nanoseconds since 1970."""
    end_ns: int
    attributes: Mapping[str, Any]
    moments: tuple[SpanMoment, ...]
    error: str
    """Empty: it did not fail."""


class SpanRing(SpanProcessor):
    """Remembers the last spans that ended. Thread-safe; takes a span in constant time."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._order: deque[TraceId] = deque()
        """The trace of each span, the oldest first."""
        self._spans: dict[TraceId, list[EndedSpan]] = {}
        self.dropped = 0
        """Spans that were forgotten for newer ones."""

    def __len__(self) -> int:
        return len(self._order)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing: a span counts once it ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Remembers `span`."""
        ended = _ended(span)
        if ended is None:
            return
        with self._lock:
            self._order.append(ended.trace_id)
            self._spans.setdefault(ended.trace_id, []).append(ended)
            if len(self._order) > self._capacity:
                self._forget()

    def spans(self, trace_ids: Iterable[TraceId]) -> list[EndedSpan]:
        """The spans of some traces, by their start; of very many the last ones."""
        with self._lock:
            found = [one for trace_id in set(trace_ids) for one in self._spans.get(trace_id, ())]
        return sorted(found, key=lambda span: span.start_ns)[-MOST_TOLD:]

    @property
    def trace_ids(self) -> frozenset[TraceId]:
        """The traces of which a span is remembered."""
        with self._lock:
            return frozenset(self._spans)

    def shutdown(self) -> None:
        """Nothing: what is remembered stays readable."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the SDK's
        """Nothing waits."""
        return True

    def check_integrity(self) -> None:
        """Raises AssertionError when the books do not agree."""
        with self._lock:
            kept = sum(len(spans) for spans in self._spans.values())
            assert kept == len(self._order) <= self._capacity, (kept, len(self._order))
            assert all(self._spans.values()), "a trace without spans is kept"

    def _forget(self) -> None:
        """Drops the oldest span, which is the first one of its trace."""
        trace_id = self._order.popleft()
        spans = self._spans[trace_id]
        spans.pop(0)
        if not spans:
            del self._spans[trace_id]
        self.dropped += 1


def _ended(span: ReadableSpan) -> EndedSpan | None:
    context = span.context
    if context is None or span.start_time is None or span.end_time is None:
        return None
    error = ""
    if span.status.status_code is StatusCode.ERROR:
        error = span.status.description or "failed"
    return EndedSpan(
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        parent_id=span.parent.span_id.to_bytes(8, "big") if span.parent else b"",
        name=span.name,
        start_ns=span.start_time,
        end_ns=span.end_time,
        attributes=_kept(span.attributes),
        moments=tuple(
            SpanMoment(event.name, event.timestamp, _kept(event.attributes))
            for event in span.events
        ),
        error=error,
    )


def _kept(attributes: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return dict(attributes) if attributes else _NOTHING
