"""One sequence in the engine: its tokens, how far their KV is, when it ends.

Knows its request and its end; not where its KV lies or when it is its turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.kv.sequence_kv import SequenceKV
from engine.logit_changes import LogitChanges
from engine.masks import masked_tokens
from engine.sampler import SampleRow
from engine.types import FinishReason, FirstToken, Request, SampledToken


@dataclass(slots=True)
class LiveSequence:
    """A request that was admitted."""

    request: Request
    kv: SequenceKV
    end_ids: frozenset[int]
    """Tokens that end the output."""
    changes: LogitChanges | None = None
    """What changes the logits, at the request's start. The sequence keeps it up with itself."""
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

    def next_sample(self) -> SampleRow:
        """How the next token is drawn."""
        params, position = self.request.sampling, self.output_tokens
        masked = masked_tokens(params, position, self.tokens, self.end_ids)
        return SampleRow(
            params, self.request.choice, position, masked, self.changes, self.request.choices
        )

    def first_tokens(self, sampled: Sequence[SampledToken]) -> tuple[FirstToken, ...]:
        """The choices' first tokens, which `sampled` are, in the order of choices. Empty after
        the first token."""
        if self.output_tokens:
            return ()
        return tuple(
            FirstToken(choice, token, self._end_after(token, 1))
            for choice, token in enumerate(sampled, start=self.request.choice)
        )

    def append(self, sampled: Sequence[SampledToken]) -> FinishReason | None:
        """Take the tokens sampled for the choices, of which the first goes on here. Says why
        the sequence ends, if it does: with HANDOVER where any choice goes on elsewhere."""
        request, count = self.request, self.output_tokens + 1
        self.tokens.append(sampled[0].token_id)
        if self.changes is not None:
            self.changes.add(sampled[0].token_id)
        ends = [self._end_after(token, count) for token in sampled]
        if None not in ends:
            return ends[0]
        if count - len(request.emitted) == request.hand_over_after:
            return FinishReason.HANDOVER
        return None

    def _end_after(self, sampled: SampledToken, count: int) -> FinishReason | None:
        """Why a choice ends with `sampled` as its token number `count`, if it does."""
        if sampled.token_id in self.end_ids and count > self.request.sampling.min_tokens:
            return FinishReason.STOP
        if count >= self.request.sampling.max_tokens:
            return FinishReason.LENGTH
        return None
