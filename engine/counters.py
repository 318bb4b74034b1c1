"""What the engine has done since it was made. Knows numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.scheduler import Chunk


@dataclass(slots=True)
class Counters:
    """Ever growing numbers, see `EngineStatus`."""

    max_sequences: int
    steps: int = 0
    steps_by_batch_size: list[int] = field(init=False)
    prefilled_tokens: int = 0
    sampled_tokens: int = 0
    cached_tokens: int = 0
    preempted: int = 0
    handed_over: int = 0

    def __post_init__(self) -> None:
        self.steps_by_batch_size = [0] * (self.max_sequences + 1)

    def cached(self, tokens: int) -> None:
        """A sequence starts with so many prompt tokens that need no computing."""
        self.cached_tokens += tokens

    def step(self, chunks: Sequence[Chunk]) -> None:
        """A step computed `chunks`."""
        self.steps += 1
        self.steps_by_batch_size[len(chunks)] += 1
        for chunk in chunks:
            prompt = len(chunk.sequence.request.prompt)
            self.prefilled_tokens += max(0, min(chunk.end, prompt) - chunk.start)
            self.sampled_tokens += chunk.samples * chunk.sequence.request.choices
