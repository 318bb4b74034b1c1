"""The spans of a prompt at its worker, out of what the engine puts out: `prefill.wait` until the
engine begins with it, and a `prefill.chunk` for each step that computed a part of it.

The engine knows no spans: its steps' times come as values. Knows no wire.
"""

import time

from engine.types import SequenceOutput
from services.common.telemetry import tracing
from services.worker.outbox import StepTime


class PromptSpans:
    """Of one sequence, in the current span."""

    def __init__(self, cached_tokens: int, arrived_s: float | None = None) -> None:
        """`arrived_s`: when it was asked for, by the monotonic clock."""
        self._computed = cached_tokens
        self._waits_since_s: float | None = time.monotonic() if arrived_s is None else arrived_s

    def came(self, output: SequenceOutput, step: StepTime | None) -> None:
        """The sequence's next output, and when the step was that brought it."""
        tokens = output.computed_tokens - self._computed
        if step is None or tokens <= 0:
            return
        if self._waits_since_s is not None:
            _span("prefill.wait", min(self._waits_since_s, step.began_s), step.began_s)
            self._waits_since_s = None
        _span("prefill.chunk", step.began_s, step.ended_s, tokens=tokens, context=self._computed)
        self._computed = output.computed_tokens


def _span(name: str, began_s: float, ended_s: float, **attributes: int) -> None:
    named = {f"baton.{key}": value for key, value in attributes.items()}
    span = tracing.begin(name, start_ns=tracing.wall_ns(began_s), attributes=named)
    span.end(tracing.wall_ns(ended_s))
