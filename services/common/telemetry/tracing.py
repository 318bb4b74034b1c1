"""Traces of a process: makes spans, remembers them, and exports those that are sampled.

    with tracing.span("kv.fetch", blobs=12) as span:
        span.set_attribute("bytes", size)

A span is a child of the current one (`services.common.telemetry.context`). Every span is
recorded for the process's own memory (`ring`); whether its trace is exported too is decided once,
by whoever began it. Without a started `Tracing` spans cost nothing and say nothing.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import INVALID_SPAN, Span, StatusCode, Tracer, set_span_in_context

from baton import __version__
from services.common.settings import ServiceSettings
from services.common.telemetry import context
from services.common.telemetry.ring import SpanRing
from services.common.telemetry.sampling import RecordingSampler

log = logging.getLogger(__name__)

FLUSH_S = 1.0
"""For the last spans, at the end of a process."""
_EXPORT_S = 5.0
_EXPORT_PERIOD_MS = 1_000
_QUEUE_SPANS = 8_192
_BATCH_SPANS = 512
_NO_CONTEXT = Context()

_active: ContextVar["Tracing | None"] = ContextVar("baton_tracing", default=None)


@dataclass(frozen=True, slots=True)
class Tracing:
    """The traces of one process. Close it."""

    kind: str
    """What the process is, such as `prefill`."""
    name: str
    """Which one, such as `prefill-0`."""
    ring: SpanRing
    tracer: Tracer
    provider: TracerProvider
    exporter: SpanExporter | None

    async def close(self, patience_s: float = FLUSH_S) -> None:
        """Exports what is left, and gives up after `patience_s`."""
        if _active.get() is self:
            _active.set(None)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        # A thread of its own: an exporter that waits must not hold up the process's end.
        thread = threading.Thread(
            target=_shut_down, args=(self.provider, loop, ended), daemon=True, name="last-spans"
        )
        thread.start()
        try:
            async with asyncio.timeout(patience_s):
                await ended.wait()
        except TimeoutError:
            log.warning("the last spans could not be exported within %g s", patience_s)
            if self.exporter is not None:
                # Ends its retries; it may wait for its connection, so not here.
                threading.Thread(target=self.exporter.shutdown, daemon=True).start()


def start(settings: ServiceSettings, kind: str, name: str) -> Tracing:
    """Begins to trace, for the task that calls it and all that it starts from then on."""
    resource = Resource(
        {
            "service.namespace": "baton",
            "service.name": f"baton-{kind}",
            "service.instance.id": name,
            "service.version": __version__,
        }
    )
    provider = TracerProvider(
        sampler=RecordingSampler(settings.trace_ratio), resource=resource, shutdown_on_exit=False
    )
    ring = SpanRing()
    provider.add_span_processor(ring)
    exporter = _exporter(settings.otlp_endpoint) if settings.otlp_endpoint else None
    if exporter is not None:
        provider.add_span_processor(_exporting(exporter))
    tracer = provider.get_tracer("baton", __version__)
    tracing = Tracing(kind, name, ring, tracer, provider, exporter)
    _active.set(tracing)
    return tracing


def active() -> Tracing | None:
    """The traces of this process; None: it has none."""
    return _active.get()


def begin(
    name: str,
    *,
    parent: Span | None = None,
    start_ns: int | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Span:
    """A new span, a child of `parent` or else of the current one; whoever begins it ends it.
    It does not become the current one."""
    tracing = _active.get()
    if tracing is None:
        return INVALID_SPAN
    above = parent or context.current()
    return tracing.tracer.start_span(
        name,
        context=_NO_CONTEXT if above is None else set_span_in_context(above, _NO_CONTEXT),
        start_time=start_ns,
        attributes=dict(attributes) if attributes else None,
        record_exception=False,
        set_status_on_exception=False,
    )


@contextmanager
def span(name: str, *, start_ns: int | None = None, **attributes: Any) -> Iterator[Span]:
    """A span that is the current one inside the block; an error that leaves the block is told.
    Attributes are named `baton.*`."""
    named = {f"baton.{key}": value for key, value in attributes.items()}
    begun = begin(name, start_ns=start_ns, attributes=named)
    try:
        with context.attached(begun) if begun.is_recording() else nullcontext():
            yield begun
    except BaseException as error:
        fail(begun, error)
        raise
    finally:
        begun.end()


def fail(span: Span, error: BaseException) -> None:
    """Says that the span ended with `error`; one that was cancelled, or closed, is said to be."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        span.set_status(StatusCode.ERROR, "cancelled")
        return
    reason = getattr(error, "reason", "") or type(error).__name__
    span.set_attribute("error.type", reason)
    span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")


def wall_ns(monotonic_s: float) -> int:
    """When it was by the process's wall clock, in nanoseconds since 1970."""
    return _ANCHOR_NS + round(monotonic_s * 1e9)


def _exporter(endpoint: str) -> SpanExporter:
    # Here, since it costs memory and time that processes without a collector save.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(
        endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=_EXPORT_S
    )


def _exporting(exporter: SpanExporter) -> BatchSpanProcessor:
    """Exports from a thread of its own; what it can't keep is lost, not waited for."""
    return BatchSpanProcessor(
        exporter,
        max_queue_size=_QUEUE_SPANS,
        schedule_delay_millis=_EXPORT_PERIOD_MS,
        max_export_batch_size=_BATCH_SPANS,
    )


def _shut_down(
    provider: TracerProvider, loop: asyncio.AbstractEventLoop, ended: asyncio.Event
) -> None:
    try:
        provider.shutdown()
    finally:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(ended.set)


_ANCHOR_NS = time.time_ns() - time.monotonic_ns()
"""Between the two clocks, once and for all: so that spans of one process fit together exactly."""
