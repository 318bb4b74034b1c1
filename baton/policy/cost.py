"""What engine steps take: a small linear model, and what follows from it.

Pure arithmetic on frozen values. Fitting the model to measured steps is the worker's matter;
here are the priors that hold before it has measured any.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one step, as a sum of what is in it."""

    base_s: float
    """Of every step."""
    prompt_token_s: float
    """For each prompt token."""
    prompt_pair_s: float
    """For each prompt token and each token before it: attention."""
    sequence_s: float
    """For each sequence that decodes."""
    context_token_s: float
    """For each token of those sequences' contexts."""
    relative_error: float = 1.0
    """Mean relative error of recent predictions; 1 as long as nothing was measured."""

    def step_s(
        self,
        *,
        prompt_tokens: float = 0,
        prompt_pairs: float = 0,
        sequences: float = 0,
        context_tokens: float = 0,
    ) -> float:
        """Seconds of one step."""
        return (
            self.base_s
            + self.prompt_token_s * prompt_tokens
            + self.prompt_pair_s * prompt_pairs
            + self.sequence_s * sequences
            + self.context_token_s * context_tokens
        )

    def decode_step_s(self, sequences: float, context_tokens: float) -> float:
        """Seconds of a step that decodes so many sequences, of so many tokens in all."""
        return self.step_s(sequences=sequences, context_tokens=context_tokens)

    def prefill_s(self, new_tokens: int, context_tokens: int, step_tokens: int) -> float:
        """Seconds to compute `new_tokens` that follow `context_tokens`, in steps of at most
        `step_tokens`, with nothing beside them."""
        if new_tokens <= 0:
            return 0.0
        steps = math.ceil(new_tokens / max(1, step_tokens))
        work = self.step_s(prompt_tokens=new_tokens, prompt_pairs=pairs(new_tokens, context_tokens))
        return work + (steps - 1) * self.base_s

    def sequences_within(self, target_s: float, mean_context: float, most: int) -> int:
        """How many sequences of `mean_context` tokens each can decode in steps of at most
        `target_s`: at least one, at most `most`."""
        each = self.sequence_s + self.context_token_s * mean_context
        if each <= 0:
            return most if self.base_s <= target_s else 1
        return math.floor(max(1, min(most, (target_s - self.base_s) / each + 1e-9)))


def pairs(new_tokens: int, context_tokens: int) -> int:
    """(token, earlier token or itself) pairs of `new_tokens` that follow `context_tokens`."""
    return new_tokens * context_tokens + new_tokens * (new_tokens + 1) // 2


PRIORS = {
    "cpu": StepCost(0.02, 2e-3, 1e-7, 5e-3, 5e-6),
    "cuda": StepCost(0.01, 1e-4, 1e-9, 2e-4, 2e-7),
}
"""By device, for a worker that has not measured itself: slower than most, so that a cold start
is cautious."""
