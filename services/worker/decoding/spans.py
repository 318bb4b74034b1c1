"""The span of a decode call at its worker: `decode.run`, with its first and last step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span

from services.common.telemetry import tracing
from services.worker.decoding.events import DecodeJob, Event, HandedOff, Started, Tokens


class DecodeSteps:
    """What a call's span is told."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._tokens = 0
        self._last_ns = 0

    def came(self, event: Event) -> None:
        """The call's next event."""
        match event:
            case Started():
                self._span.set_attributes(
                    {
                        "baton.cached_tokens": event.cached_tokens,
                        "baton.missing_tokens": event.missing_tokens,
                    }
                )
            case Tokens(tokens):
                now = time.time_ns()
                if not self._tokens:
                    self._span.add_event("first_step", timestamp=now)
                self._tokens += len(tokens)
                self._last_ns = now
            case HandedOff():
                self._span.add_event("handed_off", {"baton.reason": event.reason.name.lower()})

    def end(self) -> None:
        """No more will come."""
        if self._last_ns:
            self._span.add_event("last_step", timestamp=self._last_ns)
        self._span.set_attribute("gen_ai.usage.output_tokens", self._tokens)


@contextmanager
def decode_span(job: DecodeJob) -> Iterator[DecodeSteps]:
    """The call runs inside the block, in one task."""
    handed_over = job.handed_over is not None
    with tracing.span(
        "decode.run", attempt=job.claim.attempt, choice=job.request.choice, handed_over=handed_over
    ) as span:
        steps = DecodeSteps(span)
        try:
            yield steps
        finally:
            steps.end()
