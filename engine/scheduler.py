"""What the next step computes: one token for each decoding sequence, then chunks of prompts.

Prompts are served in the order in which they were started, as far as the step's budget goes,
so a long prompt delays running streams by no more than a chunk. Knows sequences and whether
the cache has blocks; no model and no sampling.
"""

from collections.abc import Iterator, Sequence, ValuesView
from dataclasses import dataclass

from engine.errors import ensure
from engine.kv.cache import KVCache
from engine.sequence import LiveSequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some tokens of a sequence, computed in one step."""

    sequence: LiveSequence
    start: int
    count: int

    @property
    def end(self) -> int:
        """Tokens that have KV after the step."""
        return self.start + self.count

    @property
    def samples(self) -> int:
        """How many of the chunk's last rows are sampled from."""
        return int(self.end == len(self.sequence.tokens))

    @property
    def reported(self) -> range:
        """The positions of the chunk whose logits tell the next prompt token's probability,
        where those are wanted."""
        request = self.sequence.request
        if not request.reports_prompt:
            return range(0)
        return range(self.start, min(self.end, len(request.prompt) - 1))


class Scheduler:
    """The sequences that were started, in that order. Not thread-safe."""

    def __init__(self, max_step_tokens: int) -> None:
        self._max_step_tokens = max_step_tokens
        self._sequences: dict[str, LiveSequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def started(self) -> ValuesView[LiveSequence]:
        """The sequences, in the order in which they were started."""
        return self._sequences.values()

    def add(self, sequence: LiveSequence) -> None:
        """Queue a sequence up."""
        self._sequences[sequence.request.request_id] = sequence

    def remove(self, sequence: LiveSequence) -> None:
        """Forget a sequence, if it is here."""
        self._sequences.pop(sequence.request.request_id, None)

    def check_integrity(self, started: Sequence[LiveSequence]) -> None:
        """Raise IntegrityError unless exactly the `started` sequences are here."""
        ensure(
            {id(one) for one in started} == {id(one) for one in self._sequences.values()},
            "the scheduler's sequences are not those that were started",
        )
        for sequence in started:
            ensure(sequence.remaining > 0, "a started sequence has nothing to compute")

    def schedule(self, cache: KVCache) -> list[Chunk]:
        """The next step, with blocks for all of its tokens.

        A sequence waits that has outgrown its promise, or for which there are no blocks since
        exports are not released yet. Empty when all wait or there is none.
        """
        chunks: list[Chunk] = []
        budget = self._max_step_tokens
        for sequence in self._in_order():
            if budget == 0:
                break
            wanted = min(sequence.remaining, budget)
            count = cache.room_for(sequence.kv, sequence.computed, wanted)
            if count > 0:
                cache.extend(sequence.kv, sequence.computed + count)
                chunks.append(Chunk(sequence, sequence.computed, count))
                budget -= count
        return chunks

    def _in_order(self) -> Iterator[LiveSequence]:
        sequences = self._sequences.values()
        yield from (one for one in sequences if one.remaining == 1)
        yield from (one for one in sequences if one.remaining > 1)
