"""Which tokens may not be drawn next. Knows tokens; no logits.

A `LogitMask` holds an output to a language. Who makes one knows the text that tokens stand for;
here it is asked for tokens only. `engine/constrained.py` says what follows from the answers.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from engine.types import SamplingParams


class LogitMask(Protocol):
    """What may follow one sequence's output, which it begins with at `Request.emitted`.

    Belongs to its sequence; used on the engine's thread. Anything may raise, MaskError where
    the language is at fault: that ends the sequence alone, with FAILED.
    """

    @property
    def may_end(self) -> bool:
        """Whether the output is complete as it is."""
        ...

    @property
    def must_end(self) -> bool:
        """Whether the output is complete and nothing can follow."""
        ...

    def fill(self, bits: Tensor) -> None:
        """Overwrites `bits`, int32 [vocabulary / 32, rounded up] in main memory: bit t % 32 of
        element t // 32 is set where token t may follow as text. End tokens are no text."""
        ...

    def accept(self, token: int) -> None:
        """The output has one more `token`, which `fill` allowed. Whatever takes long may begin
        now on another thread: `fill` comes after the next step's model."""
        ...

    def fork(self) -> "LogitMask":
        """A mask for the same output, which goes its own way."""
        ...


def masked_tokens(
    params: "SamplingParams", output: int, tokens: Sequence[int], end_ids: frozenset[int]
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
