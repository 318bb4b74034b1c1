"""Measured steps before the first request: what this model takes on this machine.

The steps are real; the contexts that they attend to are not computed but claimed, as blocks
that came from elsewhere, since a step takes as long whatever its KV says. Knows the engine from
outside, and a clock; not what the measurements are for.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.engine import Engine
from engine.steps import StepReport
from engine.types import Request, SamplingParams

Clock = Callable[[], float]
"""Seconds from any moment on."""

SALT = b"baton.warm-up"
REPEATS = 2
"""Steps of each shape that are reported, after one that is not."""
STEPS = 1 + REPEATS


@dataclass(frozen=True, slots=True)
class PromptShape:
    """One chunk of a prompt."""

    tokens: int
    context: int
    """Tokens before the chunk, whole blocks."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """A batch of sequences that decode."""

    sequences: int
    context: int
    """Tokens before the first step, of each sequence."""


Shape = PromptShape | DecodeShape


def warm_up(engine: Engine, budget_s: float, clock: Clock = time.perf_counter) -> list[StepReport]:
    """Run steps of many shapes for at most `budget_s` seconds and the step that began before.

    Before the engine is given to a loop; it must be new, and is as new afterwards. The first
    step of each shape is not reported, since it is slower than those that follow.
    """
    warming = _WarmUp(engine, clock, clock() + budget_s)
    try:
        for shape in shapes(engine):
            if warming.is_over:
                break
            warming.run(shape)
    finally:
        warming.end()
    return warming.reports


def shapes(engine: Engine) -> list[Shape]:
    """What to measure, so that the first few tell most: a prompt and a batch, each small and
    large; then how context adds to both; then what is in between."""
    limits, capacity = engine.limits, engine.capacity
    chunk = min(engine.config.max_step_tokens, limits.context_tokens - 1)
    batches = [1]
    while batches[-1] * 2 < capacity.sequences:
        batches.append(batches[-1] * 2)
    most = capacity.sequences
    short = 2 * engine.config.block_size
    found = [
        _decode(engine, 1, short),
        _prompt(engine, chunk // 4, 0),
        _decode(engine, most, short),
        _prompt(engine, chunk, 0),
        _decode(engine, most, limits.context_tokens // 4),
        _prompt(engine, chunk // 2, limits.context_tokens // 4),
        _decode(engine, 1, limits.context_tokens // 2),
        _prompt(engine, chunk // 16, 0),
        *(_decode(engine, batch, short) for batch in batches),
        _prompt(engine, chunk // 4, limits.context_tokens // 2),
        *(_decode(engine, batch, limits.context_tokens // 2) for batch in reversed(batches)),
        _decode(engine, most, limits.context_tokens),
        _prompt(engine, chunk, limits.context_tokens),
        _decode(engine, 1, limits.context_tokens),
    ]
    return list(dict.fromkeys(shape for shape in found if shape is not None))


def _prompt(engine: Engine, tokens: int, context: int) -> PromptShape | None:
    """A chunk of at most `tokens` after at most `context`, that fits; None if there is none."""
    room = engine.limits.context_tokens - 1
    tokens = min(max(2, tokens), engine.config.max_step_tokens, room)
    context = max(0, min(context, room - tokens))
    return PromptShape(tokens, context - context % engine.config.block_size) if tokens else None


def _decode(engine: Engine, sequences: int, context: int) -> DecodeShape | None:
    """A batch with at most `context` tokens each, that fits; None if there is none."""
    room = min(engine.limits.context_tokens, engine.capacity.kv_tokens // sequences)
    context = min(context, room - 1 - STEPS)
    return DecodeShape(sequences, context) if context > 0 else None


class _WarmUp:
    """The steps run so far, and the sequences made for them."""

    def __init__(self, engine: Engine, clock: Clock, deadline: float) -> None:
        self.reports: list[StepReport] = []
        self._engine = engine
        self._clock = clock
        self._deadline = deadline
        self._made = 0

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._clock() >= self._deadline

    def run(self, shape: Shape) -> None:
        """Run the steps of one shape, as far as the time goes."""
        match shape:
            case PromptShape(tokens, context):
                steps = self._prompts(tokens, context)
            case DecodeShape(sequences, context):
                steps = self._decodes(sequences, context)
        for number, report in enumerate(steps):
            if number > 0:
                self.reports.append(report)

    def end(self) -> None:
        """Leave the engine as new."""
        for number in range(self._made):
            self._engine.cancel(_request_id(number))
        self._engine.reset()

    def _prompts(self, tokens: int, context: int) -> Iterator[StepReport]:
        for _ in range(STEPS):
            if not self._start(self._text(context + tokens), (), 1, claimed=context):
                return
            yield from self._step()

    def _decodes(self, sequences: int, context: int) -> Iterator[StepReport]:
        for _ in range(sequences):
            text = self._text(context + 1)
            if not self._start(text[:-1], text[-1:], 1 + STEPS, claimed=context):
                return
        for _ in range(STEPS):
            yield from self._step()

    def _start(
        self, prompt: tuple[int, ...], emitted: tuple[int, ...], max_tokens: int, claimed: int
    ) -> bool:
        """Start a sequence whose first `claimed` tokens are in KV; False if time is up."""
        if self.is_over:
            return False
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        salt = SALT + self._made.to_bytes(4, "big")
        request = Request(_request_id(self._made), prompt, sampling, emitted, salt=salt)
        self._made += 1
        known = Request("", request.tokens[: claimed + 1], sampling, salt=salt)
        names = self._engine.names(request if emitted else known)
        admission = self._engine.admit(request, frozenset(names))
        self._engine.start(request.request_id, [ref.name for ref in admission.missing])
        return True

    def _text(self, tokens: int) -> tuple[int, ...]:
        """Token ids spread over the vocabulary, others for each sequence."""
        size, first = self._engine.limits.vocab_size, self._made * 7919
        return tuple((first + i * 104_729) % size for i in range(tokens))

    def _step(self) -> Iterator[StepReport]:
        """Run a step; nothing if time is up."""
        if self.is_over:
            return
        began = self._clock()
        self._engine.step()
        seconds = self._clock() - began
        shape = self._engine.last_shape
        if shape is not None:
            yield StepReport(shape, seconds)


def _request_id(number: int) -> str:
    return f"warm-up-{number}"
