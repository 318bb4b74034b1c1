"""Which traces are exported. All are recorded."""

from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes


class RecordingSampler(Sampler):
    """Samples a part of the traces that begin here, and otherwise does as whoever began them.

    Spans of the others are recorded too, so that the process remembers them.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._chance = TraceIdRatioBased(ratio)

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,  # noqa: ARG002 - the SDK's
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,  # noqa: ARG002
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """The decision for one span."""
        parent = trace.get_current_span(parent_context).get_span_context()
        if parent.is_valid:
            sampled, trace_state = parent.trace_flags.sampled, parent.trace_state
        else:
            told = self._chance.should_sample(parent_context, trace_id, name)
            sampled = told.decision is Decision.RECORD_AND_SAMPLE
        decision = Decision.RECORD_AND_SAMPLE if sampled else Decision.RECORD_ONLY
        return SamplingResult(decision, attributes, trace_state)

    def get_description(self) -> str:
        """For people."""
        return f"RecordingSampler{{{self._ratio}}}"
