"""The spans of one request at its router, from its arrival to its end.

    generate
      queue      from the arrival to the turn
      prefill    from there to the first token, whoever computes the prompt
      decode     one for each call to a decode worker

Queue and prefill begin and end at the stopwatch's moments, so they add up to the time to first
token. Retries and moves are events. Knows no wires.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from opentelemetry.trace import Span

from baton.errors import BatonError
from baton.policy.fleet import Worker
from services.common.telemetry import context, tracing
from services.common.telemetry.context import Metadata

if TYPE_CHECKING:
    from services.router.choice import Choice
    from services.router.life import Life

_QUEUE, _PREFILL = "queue", "prefill"


class RequestTrace:
    """The spans of one request. Its methods are told what happens, and never raise."""

    def __init__(self, arrival_s: float) -> None:
        """`arrival_s` is a moment of the monotonic clock, as are all others here."""
        arrival = tracing.wall_ns(arrival_s)
        self.root = tracing.begin("generate", start_ns=arrival)
        self.trace_id = context.trace_id_of(self.root)
        self._phase: Span | None = tracing.begin(_QUEUE, parent=self.root, start_ns=arrival)
        self._in = _QUEUE

    @contextmanager
    def running(self) -> Iterator[None]:
        """The request runs inside the block; logs and spans in it are a part of it."""
        try:
            with context.attached(self.root) if self.trace_id else nullcontext():
                yield
        except BaseException as error:
            for span in (self._phase, self.root):
                if span is not None:
                    tracing.fail(span, error)
            raise
        finally:
            if self._phase is not None:
                self._phase.end()
            self.root.end()

    def accepted(self, life: "Life") -> None:
        """The request was read and its prompt tokenized."""
        generation = life.generation
        self.root.add_event("accepted")
        self.root.set_attributes(
            {
                "gen_ai.operation.name": "text_completion",
                "gen_ai.request.max_tokens": generation.max_tokens,
                "gen_ai.request.choice.count": generation.choices,
                "baton.request_id": life.request_id,
                "baton.resumed": generation.resumed,
            }
        )
        if generation.urgency.tenant:
            self.root.set_attribute("baton.tenant", generation.urgency.tenant)

    def placed(self, life: "Life") -> None:
        """Workers were found, for the first time or again."""
        placement, turned = life.placement, life.watch.turned
        if placement is None or turned is None or self._phase is None:
            return
        if self._in == _QUEUE:
            moment = tracing.wall_ns(turned)
            self._phase.end(moment)
            self._phase = tracing.begin(_PREFILL, parent=self.root, start_ns=moment)
            self._in = _PREFILL
        self.root.set_attribute("gen_ai.request.model", placement.decode.model.name)
        worker = placement.prefill or placement.decode
        self._phase.add_event("placed", {"baton.worker": worker.worker_id})
        self._phase.set_attributes(
            {
                "baton.worker": worker.worker_id,
                "baton.local": placement.local,
                "baton.predicted_ttft_s": placement.predicted_ttft_s,
            }
        )

    def prefill_headers(self) -> Metadata:
        """What tells a prefill worker to which span its work belongs."""
        return context.inject(self._phase or self.root)

    def first_token(self, life: "Life") -> None:
        """The first token of any choice came, or another one."""
        began = life.watch.began
        if self._phase is None or began is None:
            return
        self._phase.set_attribute("baton.cached_tokens", life.cached_tokens or 0)
        self._phase.end(tracing.wall_ns(began))
        self._phase = None

    def retried(self, worker: Worker, error: BatonError) -> None:
        """A worker failed; whether another one is tried is not known yet."""
        told = {"baton.worker": worker.worker_id, "error.type": error.reason, "error": str(error)}
        (self._phase or self.root).add_event("retry", told)

    @contextmanager
    def decoding(self, choice: "Choice", worker: Worker) -> "Iterator[DecodePart]":
        """A choice is decoded by `worker` inside the block. The span is not the current one: the
        block is inside a generator, and would make it so for whoever reads that."""
        told = {
            "baton.worker": worker.worker_id,
            "baton.choice": choice.index,
            "baton.attempt": choice.attempt,
        }
        span = tracing.begin("decode", parent=self.root, attributes=told)
        before, part = len(choice.emitted), DecodePart(span)
        try:
            yield part
        except BaseException as error:
            tracing.fail(span, error)
            raise
        finally:
            span.set_attribute("gen_ai.usage.output_tokens", len(choice.emitted) - before)
            part.end()

    def ended(self, life: "Life") -> None:
        """What became of the request."""
        usage = life.usage()
        self.root.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "baton.cached_tokens": usage.cached_tokens,
                "gen_ai.response.finish_reasons": [
                    choice.finish_reason.name.lower()
                    for choice in life.choices
                    if choice.finish_reason is not None
                ],
            }
        )


class DecodePart:
    """The span of one call to a decode worker."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._last_ns = 0
        self.headers = context.inject(span)
        """What tells the worker to which span its work belongs."""

    def stepped(self) -> None:
        """Tokens of a step came."""
        now = time.time_ns()
        if not self._last_ns:
            self._span.add_event("first_step", timestamp=now)
        self._last_ns = now

    def handed_off(self, draining: bool) -> None:
        """The worker let the choice go."""
        self._span.add_event("handed_off", {"baton.draining": draining})

    def end(self) -> None:
        """The call is over."""
        if self._last_ns:
            self._span.add_event("last_step", timestamp=self._last_ns)
        self._span.end()
