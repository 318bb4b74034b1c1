"""One sequence in the engine: its tokens, how far their KV is, when it ends.

Knows its request and its end; not where its KV lies or when it is its turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.constrained import Constrained
from engine.kv.sequence_kv import SequenceKV
from engine.logit_changes import LogitChanges
from engine.masks import masked_tokens
from engine.sampler import SampleRow
from engine.types import FinishReason, FirstToken, Request, SampledToken


@dataclass(frozen=True, slots=True)
class Appended:
    """What tokens that were sampled mean for their sequence."""

    first_tokens: tuple[FirstToken, ...]
    """The choices' first tokens, in the order of choices. Empty after the first token."""
    reason: FinishReason | None
    """Why the sequence ends, if it does: with HANDOVER where any choice goes on elsewhere."""


@dataclass(slots=True)
class LiveSequence:
    """A request that was admitted."""

    request: Request
    kv: SequenceKV
    end_ids: frozenset[int]
    """Tokens that end the output."""
    changes: LogitChanges | None = None
    """What changes the logits, at the request's start. The sequence keeps it up with itself."""
    constrained: Constrained | None = None
    """What holds the output to a language, as `changes`."""
    tokens: list[int] = field(init=False)
    """Prompt and output; the KV of the last one comes with the step that follows it."""
    computed: int = 0
    """Tokens whose KV is there."""

    def __post_init__(self) -> None:
        self.tokens = list(self.request.tokens)

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def output_tokens(self) -> int:
        """Tokens of the output so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def decodes(self) -> bool:
        """Whether the next step computes one token of the output and samples the next."""
        return self.remaining == 1 and self.output_tokens > 0

    @property
    def outgrows(self) -> bool:
        """Whether the tokens that are to be computed need more room than was promised."""
        return len(self.tokens) > self.kv.promised_tokens

    def boundary(self, block_size: int) -> int:
        """The longest boundary within the KV that is there at which a resume of the sequence,
        as it is now, would look for blocks; see `engine/kv/prefix.py`."""
        tails = {len(self.request.prompt), len(self.tokens) - 1} if self.output_tokens else set()
        if self.computed in tails:
            return self.computed
        return self.computed - self.computed % block_size

    def next_sample(self) -> SampleRow | None:
        """How the next token is drawn; None where none can be, see `end_without_token`."""
        params, position = self.request.sampling, self.output_tokens
        masked = masked_tokens(params, position, self.tokens, self.end_ids)
        allowed = None
        if self.constrained is not None:
            allowed = self.constrained.allowed(position, masked)
            if allowed is None:
                return None
        request = self.request
        return SampleRow(
            params, request.choice, position, masked, self.changes, request.choices, allowed
        )

    @property
    def failure(self) -> Exception | None:
        """What the mask failed with, if it did."""
        return None if self.constrained is None else self.constrained.failure

    @property
    def end_without_token(self) -> FinishReason:
        """Why the sequence ends where no token can be drawn."""
        return FinishReason.STOP if self.failure is None else FinishReason.FAILED

    def append(self, sampled: Sequence[SampledToken]) -> "Appended":
        """Take the tokens sampled for the choices, of which the first goes on here."""
        request, count = self.request, self.output_tokens + 1
        ends = [self._end_after(token, count) for token in sampled]
        if self.constrained is not None:
            # The others' first: they begin where the first one leaves the mask.
            for index in range(len(sampled) - 1, -1, -1):
                if ends[index] is None and self._completes(sampled[index], is_own=index == 0):
                    ends[index] = FinishReason.STOP
        self.tokens.append(sampled[0].token_id)
        if self.changes is not None:
            self.changes.add(sampled[0].token_id)
        first_tokens: tuple[FirstToken, ...] = ()
        if count == 1:
            numbered = enumerate(zip(sampled, ends, strict=True), start=request.choice)
            first_tokens = tuple(FirstToken(choice, *one) for choice, one in numbered)
        return Appended(first_tokens, self._end(ends, count))

    def _end(self, ends: Sequence[FinishReason | None], count: int) -> FinishReason | None:
        if self.failure is not None:
            return FinishReason.FAILED
        if None not in ends:
            return ends[0]
        if count - len(self.request.emitted) == self.request.hand_over_after:
            return FinishReason.HANDOVER
        return None

    def _completes(self, sampled: SampledToken, *, is_own: bool) -> bool:
        """Whether nothing can follow a choice's token; its own is taken by the mask."""
        assert self.constrained is not None
        if is_own:
            return self.constrained.ended_by(sampled.token_id)
        return self.constrained.would_end_with(sampled.token_id)

    def _end_after(self, sampled: SampledToken, count: int) -> FinishReason | None:
        """Why a choice ends with `sampled` as its token number `count`, if it does."""
        if sampled.token_id in self.end_ids and count > self.request.sampling.min_tokens:
            return FinishReason.STOP
        if count >= self.request.sampling.max_tokens:
            return FinishReason.LENGTH
        return None
