"""What the running sequences were promised of each pool.

Every sequence is promised the most blocks it can hold until it has so many tokens, shared
ones counted whole, so that up to there it never waits for another to end. Blocks that only
exports hold are outside of it: they may delay a sequence until they are released. Knows
counts; no pool and no block.
"""

from engine.errors import NoRoom, ensure
from engine.kv.layout import KVLayout
from engine.kv.sizing import peak_blocks, step_blocks


class Budget:
    """Promises by group, never more than the pools hold. Not thread-safe."""

    def __init__(self, layout: KVLayout, blocks: tuple[int, ...], max_step_tokens: int) -> None:
        self._layout = layout
        self._free = [
            count - step_blocks(layout, group, max_step_tokens)
            for group, count in enumerate(blocks)
        ]
        self._initial = tuple(self._free)

    def _needed(self, kv_tokens: int) -> list[int]:
        groups = range(len(self._free))
        return [peak_blocks(self._layout, group, kv_tokens) for group in groups]

    def can_promise(self, kv_tokens: int) -> bool:
        """Whether a sequence whose KV grows to `kv_tokens` has room."""
        needed = self._needed(kv_tokens)
        return all(need <= free for need, free in zip(needed, self._free, strict=True))

    def promise(self, kv_tokens: int) -> None:
        """Set room aside. Raises NoRoom."""
        if not self.can_promise(kv_tokens):
            raise NoRoom(f"no KV blocks for a sequence of {kv_tokens} tokens now")
        for group, need in enumerate(self._needed(kv_tokens)):
            self._free[group] -= need

    def can_raise(self, kv_tokens: int, raised: int) -> bool:
        """Whether a promise of `kv_tokens` can become one of `raised`."""
        more = self._more(kv_tokens, raised)
        return all(need <= free for need, free in zip(more, self._free, strict=True))

    def raise_to(self, kv_tokens: int, raised: int) -> None:
        """Make a promise of `kv_tokens` one of `raised`; only after `can_raise` said so."""
        ensure(self.can_raise(kv_tokens, raised), f"no blocks to raise a promise to {raised}")
        for group, need in enumerate(self._more(kv_tokens, raised)):
            self._free[group] -= need

    def _more(self, kv_tokens: int, raised: int) -> list[int]:
        old, new = self._needed(kv_tokens), self._needed(raised)
        return [after - before for before, after in zip(old, new, strict=True)]

    def give_back(self, kv_tokens: int) -> None:
        """End a promise."""
        for group, need in enumerate(self._needed(kv_tokens)):
            self._free[group] += need

    def check_integrity(self, promised: list[int]) -> None:
        """Raise IntegrityError unless the promises (`kv_tokens` each) add up."""
        expected = list(self._initial)
        for kv_tokens in promised:
            for group, need in enumerate(self._needed(kv_tokens)):
                expected[group] -= need
        ensure(self._free == expected, f"free promises are {self._free}, should be {expected}")
        ensure(min(expected) >= 0, "more blocks are promised than there are")
