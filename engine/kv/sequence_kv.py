"""One sequence's KV: the blocks it has, what it was promised, how far it is named and exported.

Values that `engine/kv/cache.py` keeps up. Knows no pool.
"""

from dataclasses import dataclass, field

from engine.kv.names import SequenceNames
from engine.kv.prefix import Prefix
from engine.types import BlockRef


@dataclass(slots=True)
class BlockTable:
    """A sequence's blocks in one group: those from number `first` on."""

    first: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Number of the block after the last."""
        return self.first + len(self.blocks)


@dataclass(slots=True)
class SequenceKV:
    """One sequence's KV."""

    prefix: Prefix
    names: SequenceNames
    promised_tokens: int
    """Tokens of KV that room is set aside for now."""
    life_tokens: int
    """Most tokens of KV that it can come to have."""
    end_tokens: int
    """Where an export's resume would go on: the KV's length when the sequence is handed over."""
    tables: tuple[BlockTable, ...]
    missing: tuple[BlockRef, ...] = ()
    """Blocks that wait to be filled."""
    named_blocks: int = 0
    exported_blocks: int = 0

    def full_ref(self, group: int, index: int, block_size: int) -> BlockRef:
        """Full block `index` of a group, which is named and in the table."""
        table = self.tables[group]
        block = table.blocks[index - table.first]
        return BlockRef(self.names.full(index)[group], group, index, block, block_size)
