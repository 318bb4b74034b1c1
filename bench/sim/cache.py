"""Which prefixes hosts have, as blocks of 512 tokens, and an index over all hosts.

The index is what routers see; here it is without delay.
"""

from collections import OrderedDict
from collections.abc import Sequence

from bench.sim.workload import BLOCK_TOKENS

MOST_HOLDERS = 16


class Index:
    """Hosts by block."""

    def __init__(self) -> None:
        self._holders: dict[int, set[int]] = {}

    def add(self, block: int, host: int) -> None:
        self._holders.setdefault(block, set()).add(host)

    def remove(self, block: int, host: int) -> None:
        holders = self._holders[block]
        holders.discard(host)
        if not holders:
            del self._holders[block]

    def cached(self, blocks: Sequence[int]) -> dict[int, int]:
        """Tokens of the prompt by host, for those hosts that have the most of it."""
        found: dict[int, int] = {}
        for count in range(len(blocks), 0, -1):
            for host in self._holders.get(blocks[count - 1], ()):
                found.setdefault(host, count * BLOCK_TOKENS)
                if len(found) >= MOST_HOLDERS:
                    return found
        return found


class PrefixCache:
    """Blocks of one host, the least recently used of which make room."""

    def __init__(self, host: int, capacity_blocks: int, index: Index) -> None:
        self._host = host
        self._capacity = capacity_blocks
        self._index = index
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def clear(self) -> None:
        """Gives everything up: the host is gone."""
        for block in self._blocks:
            self._index.remove(block, self._host)
        self._blocks.clear()

    def match(self, blocks: Sequence[int]) -> int:
        """Tokens at the start of a prompt that are here; they count as used."""
        count = 0
        while count < len(blocks) and blocks[count] in self._blocks:
            count += 1
        for block in reversed(blocks[:count]):
            self._blocks.move_to_end(block)
        return count * BLOCK_TOKENS

    def add(self, blocks: Sequence[int]) -> None:
        """Takes a prompt's blocks in; its last ones are given up first."""
        for block in reversed(blocks):
            if block in self._blocks:
                self._blocks.move_to_end(block)
            else:
                self._blocks[block] = None
                self._index.add(block, self._host)
        while len(self._blocks) > self._capacity:
            block, _ = self._blocks.popitem(last=False)
            self._index.remove(block, self._host)
