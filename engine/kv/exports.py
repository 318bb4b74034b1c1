"""Blocks that leave the engine: which ones a sequence puts out, and their pins until copied.

Knows pools and the layout; not where the blocks go.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from engine.errors import ensure
from engine.kv.layout import KVLayout
from engine.kv.pool import BlockPool
from engine.kv.sequence_kv import SequenceKV
from engine.types import BlockRef


def is_exported(
    layout: KVLayout, group: int, index: int, end_tokens: int, checkpoint_blocks: int
) -> bool:
    """Whether a resume needs full block `index`: one at the sequence's end (`end_tokens`),
    or at the next checkpoint, if the sequence gets there."""
    if index >= layout.first_needed_block(group, end_tokens):
        return True
    checkpoint = -(-(index + 1) // checkpoint_blocks) * checkpoint_blocks * layout.block_size
    return checkpoint <= end_tokens and index >= layout.first_needed_block(group, checkpoint)


def full_refs(layout: KVLayout, kv: SequenceKV, checkpoint_blocks: int) -> list[BlockRef]:
    """The named blocks that are exported as a sequence goes on, and were not yet."""
    return [
        kv.full_ref(group, index, layout.block_size)
        for group, table in enumerate(kv.tables)
        for index in range(max(kv.exported_blocks, table.first), kv.named_blocks)
        if is_exported(layout, group, index, kv.end_tokens, checkpoint_blocks)
    ]


def rest_refs(
    layout: KVLayout, kv: SequenceKV, boundary: int, checkpoint_blocks: int
) -> list[BlockRef]:
    """The full blocks that a resume at `boundary` needs, that the sequence still has, and that
    `full_refs` did not give."""
    return [
        kv.full_ref(group, index, layout.block_size)
        for group, table in enumerate(kv.tables)
        for index in range(
            max(layout.blocks_for(group, boundary).start, table.first),
            boundary // layout.block_size,
        )
        if index >= kv.exported_blocks
        or not is_exported(layout, group, index, kv.end_tokens, checkpoint_blocks)
    ]


class ExportPins:
    """Holds exported blocks, so that they stay as they are. Not thread-safe."""

    def __init__(self, pools: Sequence[BlockPool]) -> None:
        self._pools = pools
        self._pins: Counter[tuple[int, int]] = Counter()

    def pin(self, ref: BlockRef) -> None:
        """Hold a block that is held already."""
        self._pools[ref.group].hold(ref.block)
        self._pins[ref.group, ref.block] += 1

    def release(self, refs: Iterable[BlockRef]) -> None:
        """End one pin of each block."""
        for ref in refs:
            key = ref.group, ref.block
            ensure(self._pins[key] > 0, f"block {ref.block} of group {ref.group} is not pinned")
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]
            self._pools[ref.group].release(ref.block)

    def check_integrity(self, refs: Iterable[BlockRef]) -> None:
        """Raise IntegrityError unless there is a pin for each of `refs`."""
        for (group, block), count in Counter((ref.group, ref.block) for ref in refs).items():
            ensure(
                self._pins[group, block] >= count,
                f"block {block} of group {group} leaves with a sequence and is not pinned",
            )

    def holders(self, group: int) -> Counter[int]:
        """Pins by block of one group."""
        return Counter({block: n for (g, block), n in self._pins.items() if g == group})
