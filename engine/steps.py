"""What a step computes, in the terms in which its time grows, and how much is left to compute.

Values, and how they come from sequences. Knows no clock: who runs the steps measures them.
A token of a prompt, or of any chunk of several tokens, is prompt work: it costs its place in
the step, and one pair with each token before it and with itself. A sequence that decodes costs
its place and its context.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.scheduler import Chunk
from engine.sequence import LiveSequence


@dataclass(frozen=True, slots=True)
class StepShape:
    """What one step computes."""

    prompt_tokens: int
    """Tokens of all chunks but those of `sequences`."""
    prompt_pairs: int
    """(token, earlier token or itself) pairs of `prompt_tokens`."""
    sequences: int
    """Sequences that decode one token."""
    context_tokens: int
    """Tokens in the contexts of `sequences`, those of this step included."""
    logits_rows: int = field(default=0, compare=False)
    """Tokens whose logits are computed; no part of what a step's time is told by."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step that was run."""

    shape: StepShape
    seconds: float


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the started sequences have before them."""

    sequences: int = 0
    """Sequences that decode."""
    context_tokens: int = 0
    """Tokens in the contexts of `sequences`, those of their next step included."""
    prompt_tokens_left: int = 0
    """Tokens that the others have to compute before they sample."""
    prompt_pairs_left: int = 0
    """(token, earlier token or itself) pairs of `prompt_tokens_left`."""


def pairs(start: int, count: int) -> int:
    """Pairs of `count` tokens from position `start` on with those before them and themselves."""
    return count * start + count * (count + 1) // 2


def shape_of(chunks: Sequence[Chunk]) -> StepShape:
    """The shape of a step of `chunks`; before it is committed, when sequences grow."""
    decoding = [chunk for chunk in chunks if chunk.sequence.decodes]
    prompts = [chunk for chunk in chunks if not chunk.sequence.decodes]
    return StepShape(
        prompt_tokens=sum(chunk.count for chunk in prompts),
        prompt_pairs=sum(pairs(chunk.start, chunk.count) for chunk in prompts),
        sequences=len(decoding),
        context_tokens=sum(chunk.end for chunk in decoding),
        logits_rows=sum(chunk.samples + len(chunk.reported) for chunk in chunks),
    )


def load_of(started: Iterable[LiveSequence]) -> EngineLoad:
    """What `started` sequences have before them."""
    sequences = context_tokens = tokens_left = pairs_left = 0
    for one in started:
        if one.decodes:
            sequences += 1
            context_tokens += len(one.tokens)
        else:
            tokens_left += one.remaining
            pairs_left += pairs(one.computed, one.remaining)
    return EngineLoad(sequences, context_tokens, tokens_left, pairs_left)
