"""One sequence in the engine: its tokens, how far their KV is, when it ends.

Knows its request and its end; not where its KV lies or when it is its turn.
"""

from dataclasses import dataclass, field

from engine.kv.cache import SequenceKV
from engine.sampler import SampleRow
from engine.types import FinishReason, Request, SampledToken


@dataclass(slots=True)
class LiveSequence:
    """A request that was admitted."""

    request: Request
    kv: SequenceKV
    end_ids: frozenset[int]
    """Tokens that end the output."""
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

    def next_sample(self) -> SampleRow:
        """How the next token is drawn."""
        params, position = self.request.sampling, self.output_tokens
        masked = self.end_ids if position < params.min_tokens else frozenset()
        return SampleRow(params, self.request.choice, position, masked)

    def append(self, sampled: SampledToken) -> FinishReason | None:
        """Take a sampled token. Says why the sequence ends, if it does."""
        self.tokens.append(sampled.token_id)
        request, count = self.request, self.output_tokens
        if sampled.token_id in self.end_ids and count > request.sampling.min_tokens:
            return FinishReason.STOP
        if count >= request.sampling.max_tokens:
            return FinishReason.LENGTH
        if count - len(request.emitted) == request.hand_over_after:
            return FinishReason.HANDOVER
        return None
