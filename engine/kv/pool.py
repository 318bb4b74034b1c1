"""The blocks of one KV group: who holds them, which are empty, which keep named KV.

A block is held (by sequences or exports), or cached (held by no one, named, ready to be
revived by its name or taken for something else), or empty. Nothing here knows what is in a
block, whose it is or how a name is made.
"""

from collections import OrderedDict
from collections.abc import Mapping

from baton.naming import BlobName
from engine.errors import ensure
from engine.kv.changes import NameChanges


class BlockPool:
    """Counts the holders of each block. Not thread-safe."""

    def __init__(self, blocks: int, changes: NameChanges | None = None) -> None:
        """`changes` is told of every name that is bound or lost."""
        self.total = blocks
        self._changes = changes
        self._holders = [0] * blocks
        self._empty = list(range(blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Least recently used first."""
        self._block_of: dict[BlobName, int] = {}
        self._name_of: dict[int, BlobName] = {}

    @property
    def available(self) -> int:
        """Blocks that can be allocated."""
        return len(self._empty) + len(self._cached)

    @property
    def used(self) -> int:
        """Blocks that someone holds."""
        return self.total - self.available

    @property
    def cached(self) -> int:
        """Blocks that no one holds and that keep named KV."""
        return len(self._cached)

    @property
    def names(self) -> tuple[BlobName, ...]:
        """All names that find a block."""
        return tuple(self._block_of)

    def find(self, name: BlobName) -> int | None:
        """The block that keeps the KV called `name`."""
        return self._block_of.get(name)

    def is_held(self, block: int) -> bool:
        """Whether anyone holds `block`."""
        return self._holders[block] > 0

    def allocate(self) -> int:
        """A block with one holder and no name; the longest unused named one if none is empty.

        Only while `available` is not zero.
        """
        ensure(self.available > 0, "allocation from a pool without available blocks")
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._unbind(block)
        self._holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One more holder of a block that is held or cached."""
        if self._holders[block] == 0:
            ensure(block in self._cached, f"block {block} is empty and can't be held")
            del self._cached[block]
        self._holders[block] += 1

    def release(self, block: int) -> None:
        """One holder less. The last one leaves a named block cached, another empty."""
        ensure(self._holders[block] > 0, f"block {block} released without a holder")
        self._holders[block] -= 1
        if self._holders[block] > 0:
            return
        if block in self._name_of:
            self._cached[block] = None
        else:
            self._empty.append(block)

    def bind(self, name: BlobName, block: int) -> None:
        """Let `name` find a held block, whose KV is whole and changes no more.

        Does nothing where the name finds another block already, which is as good.
        """
        ensure(self._holders[block] > 0, f"block {block} named without a holder")
        if name not in self._block_of and block not in self._name_of:
            self._block_of[name] = block
            self._name_of[block] = name
            if self._changes is not None:
                self._changes.bound(name)

    def _unbind(self, block: int) -> None:
        name = self._name_of.pop(block)
        del self._block_of[name]
        if self._changes is not None:
            self._changes.lost(name)

    def clear(self) -> None:
        """Drop all names, so that every block is empty, as in a new pool. Only while no one
        holds a block."""
        ensure(self.used == 0, "a pool is cleared while blocks are held")
        for block in self._cached:
            self._unbind(block)
        self._cached.clear()
        self._empty = list(range(self.total - 1, -1, -1))

    def check_integrity(self, holders: Mapping[int, int]) -> None:
        """Raise IntegrityError unless everything agrees with `holders` (count by block)."""
        empty = set(self._empty)
        ensure(len(empty) == len(self._empty), "a block is twice in the list of empty ones")
        for block, count in enumerate(self._holders):
            ensure(
                count == holders.get(block, 0),
                f"block {block} counts {count} holders, has {holders.get(block, 0)}",
            )
            states = (count > 0) + (block in empty) + (block in self._cached)
            ensure(states == 1, f"block {block} is in {states} states")
            ensure(
                not (block in empty and block in self._name_of), f"empty block {block} has a name"
            )
        ensure(self._cached.keys() <= self._name_of.keys(), "a cached block has no name")
        ensure(
            self._block_of == {name: block for block, name in self._name_of.items()},
            "names and blocks do not map both ways",
        )
