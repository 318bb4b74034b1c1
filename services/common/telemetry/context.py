"""Which span work belongs to, within a process and between processes (W3C Trace Context).

The current span is the task's: tasks inherit it, and a block sets another one. Knows no gRPC
but the shape of its metadata.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Metadata = tuple[tuple[str, str], ...]
"""Of a gRPC call."""

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
MAX_TRACESTATE_CHARACTERS = 512
"""Of a longer one nothing is passed on: it would take the room of other metadata."""

_PROPAGATOR = TraceContextTextMapPropagator()
_current: ContextVar[Span | None] = ContextVar("baton_span", default=None)


def current() -> Span | None:
    """The span that work here and now is a part of; None: of none."""
    return _current.get()


def trace_id_of(span: Span | None) -> bytes:
    """The id of the span's trace, 16 bytes; empty where there is none."""
    known = span.get_span_context() if span is not None else None
    return known.trace_id.to_bytes(16, "big") if known is not None and known.is_valid else b""


@contextmanager
def attached(span: Span | None) -> Iterator[None]:
    """Makes `span` the current one inside the block; None: there is none."""
    token = _current.set(span)
    try:
        yield
    finally:
        _restore(token)


def inject(span: Span | None = None) -> Metadata:
    """Metadata that says to which span a call belongs: `span`, or the current one; empty where
    there is none."""
    of = span or _current.get()
    if of is None or not (known := of.get_span_context()).is_valid:
        return ()
    parent = f"00-{known.trace_id:032x}-{known.span_id:016x}-{known.trace_flags:02x}"
    state = known.trace_state.to_header() if known.trace_state else ""
    return ((TRACEPARENT, parent), *(((TRACESTATE, state),) if state else ()))


def extract(metadata: Iterable[tuple[str, str | bytes]] | None) -> Span | None:
    """The caller's span as a call's metadata tell of it; None where they don't, or say nothing
    that can be read."""
    told = {
        key: value
        for key, value in metadata or ()
        if key in (TRACEPARENT, TRACESTATE) and isinstance(value, str)
    }
    if TRACEPARENT not in told:
        return None
    if len(told.get(TRACESTATE, "")) > MAX_TRACESTATE_CHARACTERS:
        del told[TRACESTATE]
    span = trace.get_current_span(_PROPAGATOR.extract(told, Context()))
    known = span.get_span_context()
    return NonRecordingSpan(known) if known.is_valid else None


def _restore(token: Token[Span | None]) -> None:
    # A generator that is closed from another task: its own context has ended.
    with suppress(ValueError):
        _current.reset(token)
