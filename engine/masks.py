"""Which tokens may not be drawn next. Knows tokens; no logits."""

from collections.abc import Iterator, Sequence

from engine.types import SamplingParams


def masked_tokens(
    params: SamplingParams, output: int, tokens: Sequence[int], end_ids: frozenset[int]
) -> frozenset[int]:
    """What is masked after `tokens`, the last `output` of which are the output's."""
    masked = end_ids if output < params.min_tokens else frozenset()
    if params.bad_sequences:
        masked = masked.union(_completions(params.bad_sequences, output, tokens))
    return masked


def _completions(
    sequences: Sequence[tuple[int, ...]], output: int, tokens: Sequence[int]
) -> Iterator[int]:
    """The tokens that would complete a sequence which begins in the output."""
    for *begin, last in sequences:
        if len(begin) <= output and list(tokens[len(tokens) - len(begin) :]) == begin:
            yield last
