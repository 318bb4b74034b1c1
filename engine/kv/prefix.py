"""The prefix rule: where can a sequence resume, given which blocks there are?

A boundary serves when every group has the blocks that a query there may see: all of them in
a full-attention group, the window's in a window group. It is a multiple of the block size,
or the end of a tail. At least one token is left to compute, since logits come from computing;
all are where the whole prompt's logits are wanted, so that no block serves.
Knows names; no pool and no block.
"""

from collections.abc import Callable, Iterator

from baton.naming import BlobName
from engine.kv.layout import KVLayout
from engine.kv.names import SequenceNames
from engine.types import Request

HasBlock = Callable[[int, BlobName], bool]
"""Whether the block of a group (by index) and name can be had."""


class Prefix:
    """The boundaries of one request, and the names of the blocks before each."""

    def __init__(self, layout: KVLayout, request: Request, names: SequenceNames) -> None:
        self._layout = layout
        self._names = names
        tokens = request.tokens
        names.grow(tokens)
        last, size = len(tokens) - 1, layout.block_size
        self._full_blocks = 0 if request.reports_prompt else last // size
        ends = {len(request.prompt), last} if request.emitted else set()
        self._tails = {end: names.tail(tokens, end) for end in ends if end <= last and end % size}
        """Names by boundary. Only a handed over or resumed sequence can find a tail."""

    def name(self, group: int, index: int, boundary: int) -> BlobName:
        """The name of block `index` as a resume at `boundary` needs it."""
        if (index + 1) * self._layout.block_size <= boundary:
            return self._names.full(index)[group]
        return self._tails[boundary][group]

    def all_names(self) -> Iterator[BlobName]:
        """Every name that could serve at some boundary."""
        for index in range(self._full_blocks):
            yield from self._names.full(index)
        for names in self._tails.values():
            yield from names

    def is_tail(self, name: BlobName) -> bool:
        """Whether `name` is that of a partial block."""
        return any(name in names for names in self._tails.values())

    def longest(self, has: HasBlock) -> int:
        """The longest boundary that the blocks in reach serve; 0 if there is none."""
        groups = range(len(self._layout.groups))
        runs = [self._runs(group, has) for group in groups]
        size = self._layout.block_size
        boundaries: list[int] = [*self._tails, *range(size, self._full_blocks * size + 1, size)]
        for boundary in sorted(boundaries, reverse=True):
            if all(self._serves(group, boundary, runs[group], has) for group in groups):
                return boundary
        return 0

    def _runs(self, group: int, has: HasBlock) -> list[int]:
        """Element i: how many blocks in a row, ending just before block i, can be had."""
        runs = [0]
        for index in range(self._full_blocks):
            found = has(group, self._names.full(index)[group])
            runs.append(runs[-1] + 1 if found else 0)
        return runs

    def _serves(self, group: int, boundary: int, runs: list[int], has: HasBlock) -> bool:
        needed = self._layout.blocks_for(group, boundary)
        full_end = boundary // self._layout.block_size
        if boundary in self._tails and not has(group, self._tails[boundary][group]):
            return False
        return runs[full_end] >= full_end - needed.start
