"""When tokens by themselves end an output. The rule is the engine's; the router applies it to
what it has received, without asking anyone."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.router.events import FinishReason, SampledToken
from services.router.validation import Generation


@dataclass(frozen=True, slots=True)
class Ending:
    """Which tokens end an output, and how long it may and must be."""

    end_ids: frozenset[int]
    min_tokens: int
    max_tokens: int

    @classmethod
    def of(cls, generation: Generation, eos_token_ids: frozenset[int]) -> "Ending":
        """The rule for one request to a model with these end tokens."""
        sampling = generation.sampling
        model_ends = frozenset[int]() if sampling.ignore_eos else eos_token_ids
        return cls(
            end_ids=model_ends.union(sampling.stop_token_ids),
            min_tokens=sampling.min_tokens,
            max_tokens=generation.max_tokens,
        )

    def may_end(self, index: int) -> bool:
        """Whether the token at `index`, counted from 0, may be the last one before max_tokens."""
        return index >= self.min_tokens

    def is_end(self, token: SampledToken, index: int) -> bool:
        """Whether the token at `index` is an end or stop token: one without a text."""
        return token.token_id in self.end_ids and self.may_end(index)

    def first_end(self, ids: Sequence[int]) -> int | None:
        """Index of the first of `ids`, an output from its beginning, that ends it; None: none."""
        ends = (at for at, one in enumerate(ids) if one in self.end_ids and self.may_end(at))
        return next(ends, None)

    def reached(self, emitted: Sequence[SampledToken]) -> FinishReason | None:
        """Why nothing can follow `emitted`; None where the output goes on."""
        if emitted and self.is_end(emitted[-1], len(emitted) - 1):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(emitted) >= self.max_tokens else None
