"""The KV of all sequences: which blocks each has, from admission to its end.

Composes one pool per group, the budget, the exports' pins and the memory; each of those
knows its part alone. Knows no model, no scheduling and no sampling. Not thread-safe.

A sequence's KV: `open` promises it room, for life or to begin with; `reserve` gives it the
blocks that serve its prefix, some of them to be filled from elsewhere; `settle` binds those
that were filled; `grow` raises the promise; `room_for` and `extend` make room for a step's
tokens; `commit` names what the step filled; `leave_behind` lets go what fell behind a window;
`close` gives everything back. A name finds only blocks that are full and whose KV is whole.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from baton.naming import BlobName
from engine.errors import ensure
from engine.kv.budget import Budget
from engine.kv.changes import CacheChanges, NameChanges
from engine.kv.exports import ExportPins, full_refs, rest_refs
from engine.kv.layout import KVLayout
from engine.kv.names import SequenceNames
from engine.kv.pool import BlockPool
from engine.kv.prefix import Prefix
from engine.kv.sequence_kv import BlockTable, SequenceKV
from engine.kv.sizing import PoolPlan, blocks_of
from engine.kv.storage import KVStorage
from engine.types import BlockRef, GroupStatus, Request


class KVCache:
    """See above."""

    def __init__(
        self,
        layout: KVLayout,
        plan: PoolPlan,
        max_step_tokens: int,
        device: str,
        growth_tokens: int | None = None,
    ) -> None:
        """`growth_tokens`: see `EngineConfig`."""
        self.layout = layout
        self.storage = KVStorage(layout, plan.blocks, device)
        windows = [spec.window for spec in layout.groups]
        self.index_group = windows.index(None) if None in windows else 0
        """The group whose names `names` and `take_changes` tell."""
        self._growth_tokens = growth_tokens
        self._changes = NameChanges()
        self._pools = tuple(
            BlockPool(count, self._changes if group == self.index_group else None)
            for group, count in enumerate(plan.blocks)
        )
        self._budget = Budget(layout, plan.blocks, max_step_tokens)
        self._exports = ExportPins(self._pools)

    # -- admission ----------------------------------------------------------------------

    def can_open(self, request: Request) -> bool:
        """Whether a sequence for `request` can be promised room to begin with."""
        return self._budget.can_promise(self._first_promise(request))

    def _first_promise(self, request: Request) -> int:
        life = _kv_tokens(request)
        if self._growth_tokens is None or request.hand_over_after is not None:
            return life
        return min(life, len(request.tokens) + self._growth_tokens - 1)

    def open(self, request: Request) -> SequenceKV:
        """A sequence without blocks yet. Raises NoRoom."""
        promised = self._first_promise(request)
        self._budget.promise(promised)
        names = SequenceNames(self.layout, request.salt)
        return SequenceKV(
            prefix=Prefix(self.layout, request, names),
            names=names,
            promised_tokens=promised,
            life_tokens=_kv_tokens(request),
            end_tokens=len(request.tokens) + (request.hand_over_after or 1) - 1,
            tables=tuple(BlockTable() for _ in self._pools),
        )

    def reserve(self, kv: SequenceKV, available: Collection[BlobName]) -> tuple[int, int]:
        """Hold the cached blocks, and allocate `kv.missing`, of the longest boundary.

        Returns it, and the longest that needs nothing from `available`.
        """
        local = kv.prefix.longest(self._is_here)
        boundary = kv.prefix.longest(
            lambda group, name: name in available or self._is_here(group, name)
        )
        if not self._can_take(kv.prefix, boundary):
            boundary = local
        self._take(kv, boundary, {})
        return boundary, local

    def settle(self, kv: SequenceKV, filled: Collection[BlobName]) -> int:
        """Bind the blocks that were filled, and hold those of the longest boundary that
        there is now. Returns it."""
        tails: dict[tuple[int, BlobName], int] = {}
        for ref in kv.missing:
            if ref.name not in filled:
                self.storage.clear(ref.group, ref.block)
            elif kv.prefix.is_tail(ref.name):
                # Never bound: the sequence goes on writing into it.
                tails[ref.group, ref.name] = ref.block
                self._pools[ref.group].hold(ref.block)
            else:
                self._pools[ref.group].bind(ref.name, ref.block)
        kv.missing = ()
        self._release_tables(kv)
        boundary = kv.prefix.longest(
            lambda group, name: (group, name) in tails or self._is_here(group, name)
        )
        self._take(kv, boundary, tails)
        for (group, _), block in tails.items():
            self._pools[group].release(block)
        kv.named_blocks = boundary // self.layout.block_size
        return boundary

    def _is_here(self, group: int, name: BlobName) -> bool:
        return self._pools[group].find(name) is not None

    def _can_take(self, prefix: Prefix, boundary: int) -> bool:
        """Whether the pools have the blocks that a resume at `boundary` allocates."""
        for group, pool in enumerate(self._pools):
            room = pool.available
            for index in self.layout.blocks_for(group, boundary):
                block = pool.find(prefix.name(group, index, boundary))
                room -= block is None or not pool.is_held(block)
            if room < 0:
                return False
        return True

    def _take(self, kv: SequenceKV, boundary: int, tails: dict[tuple[int, BlobName], int]) -> None:
        """Fill the tables with the blocks of `boundary`; those not here become missing."""
        missing: list[BlockRef] = []
        for group, (pool, table) in enumerate(zip(self._pools, kv.tables, strict=True)):
            needed = self.layout.blocks_for(group, boundary)
            names = [kv.prefix.name(group, index, boundary) for index in needed]
            found = [tails.get((group, name), pool.find(name)) for name in names]
            for block in found:
                if block is not None:
                    pool.hold(block)  # all, before an allocation takes one of them
            table.first = needed.start
            table.blocks = [pool.allocate() if block is None else block for block in found]
            for index, name, old, block in zip(needed, names, found, table.blocks, strict=True):
                if old is None:
                    used = min(self.layout.block_size, boundary - index * self.layout.block_size)
                    missing.append(BlockRef(name, group, index, block, used))
        kv.missing = tuple(missing)

    # -- steps --------------------------------------------------------------------------

    def can_grow(self, kv: SequenceKV) -> bool:
        """Whether there is room to raise the sequence's promise once."""
        return self._budget.can_raise(kv.promised_tokens, self._grown(kv))

    def grow(self, kv: SequenceKV) -> None:
        """Raise the sequence's promise once; only after `can_grow` said so."""
        grown = self._grown(kv)
        self._budget.raise_to(kv.promised_tokens, grown)
        kv.promised_tokens = grown

    def _grown(self, kv: SequenceKV) -> int:
        """The sequence's next promise."""
        return min(kv.life_tokens, kv.promised_tokens + (self._growth_tokens or kv.life_tokens))

    def room_for(self, kv: SequenceKV, computed: int, count: int) -> int:
        """How many of `count` more tokens are promised and have blocks now."""
        size = self.layout.block_size
        count = min(count, kv.promised_tokens - computed)
        for table, pool in zip(kv.tables, self._pools, strict=True):
            count = min(count, (table.end + pool.available) * size - computed)
        return count

    def extend(self, kv: SequenceKV, tokens: int) -> None:
        """Have blocks for `tokens` in all; only after `room_for` said so."""
        end = blocks_of(tokens, self.layout.block_size)
        for table, pool in zip(kv.tables, self._pools, strict=True):
            while table.end < end:
                table.blocks.append(pool.allocate())

    def commit(self, kv: SequenceKV, tokens: Sequence[int], computed: int) -> None:
        """Name the blocks that are full now that `computed` of `tokens` have KV."""
        full = computed // self.layout.block_size
        if full == kv.named_blocks:
            return
        kv.names.grow(tokens)
        for group, (pool, table) in enumerate(zip(self._pools, kv.tables, strict=True)):
            for index in range(kv.named_blocks, full):
                pool.bind(kv.names.full(index)[group], table.blocks[index - table.first])
        kv.named_blocks = full

    def leave_behind(self, kv: SequenceKV, computed: int) -> None:
        """Let go the blocks that no query from position `computed` on sees."""
        for group, (pool, table) in enumerate(zip(self._pools, kv.tables, strict=True)):
            passed = self.layout.first_needed_block(group, computed) - table.first
            if passed > 0:
                _release_backwards(pool, table.blocks[:passed])
                del table.blocks[:passed]
                table.first += passed

    def close(self, kv: SequenceKV) -> None:
        """Give back all blocks and the promise. What exports pin stays until released."""
        for ref in kv.missing:
            self.storage.clear(ref.group, ref.block)
        kv.missing = ()
        self._release_tables(kv)
        self._budget.give_back(kv.promised_tokens)

    def _release_tables(self, kv: SequenceKV) -> None:
        for pool, table in zip(self._pools, kv.tables, strict=True):
            _release_backwards(pool, table.blocks)
            table.first, table.blocks = 0, []

    # -- exports ------------------------------------------------------------------------

    def export_full(self, kv: SequenceKV, checkpoint_blocks: int) -> list[BlockRef]:
        """Pin the named blocks that a resume elsewhere needs and that were not exported."""
        refs = full_refs(self.layout, kv, checkpoint_blocks)
        kv.exported_blocks = kv.named_blocks
        self._pin(refs)
        return refs

    def export_rest(self, kv: SequenceKV, boundary: int, checkpoint_blocks: int) -> list[BlockRef]:
        """Pin the full blocks that a resume at `boundary` needs and that `export_full` did not
        put out, as far as the sequence has them."""
        refs = rest_refs(self.layout, kv, boundary, checkpoint_blocks)
        self._pin(refs)
        return refs

    def export_tail(self, kv: SequenceKV, tokens: Sequence[int], computed: int) -> list[BlockRef]:
        """Pin the partial block at `computed`, if there is one. Nothing may be written to it
        any more."""
        index, used = divmod(computed, self.layout.block_size)
        if not used:
            return []
        refs = []
        for group, name in enumerate(kv.names.tail(tokens, computed)):
            block = kv.tables[group].blocks[index - kv.tables[group].first]
            self.storage.clear(group, block, used)
            refs.append(BlockRef(name, group, index, block, used))
        self._pin(refs)
        return refs

    def _pin(self, refs: Iterable[BlockRef]) -> None:
        for ref in refs:
            self._exports.pin(ref)

    def release_exports(self, refs: Iterable[BlockRef]) -> None:
        """End one pin of each block."""
        self._exports.release(refs)

    # -- names --------------------------------------------------------------------------

    def names(self) -> tuple[BlobName, ...]:
        """The names of all full blocks of `index_group`."""
        return self._pools[self.index_group].names

    def take_changes(self) -> CacheChanges:
        """How `names` changed since the last call."""
        return self._changes.take()

    def clear(self) -> None:
        """Drop all cached KV. Only while there is no sequence and no export."""
        for pool in self._pools:
            pool.clear()

    # -- status -------------------------------------------------------------------------

    def status(self) -> tuple[GroupStatus, ...]:
        """Blocks of every group."""
        return tuple(
            GroupStatus(
                name=spec.name,
                total_blocks=pool.total,
                used_blocks=pool.used,
                cached_blocks=pool.cached,
                block_bytes=self.layout.block_bytes(group),
            )
            for group, (spec, pool) in enumerate(zip(self.layout.groups, self._pools, strict=True))
        )

    def check_integrity(self, live: Sequence[SequenceKV], leaving: Iterable[BlockRef] = ()) -> None:
        """Raise IntegrityError unless blocks, pins and promises agree with the sequences that
        are open; `leaving` are exports that nobody can have released yet."""
        self._exports.check_integrity(leaving)
        size = self.layout.block_size
        for kv in live:
            ensure(
                kv.promised_tokens <= kv.life_tokens,
                "a sequence is promised more than it can come to have",
            )
            ensure(
                all(table.end <= blocks_of(kv.promised_tokens, size) for table in kv.tables),
                "a sequence has more blocks than it was promised",
            )
        self._budget.check_integrity([kv.promised_tokens for kv in live])
        for group, pool in enumerate(self._pools):
            holders: Counter[int] = self._exports.holders(group)
            for kv in live:
                table = kv.tables[group]
                ensure(len(set(table.blocks)) == len(table.blocks), "a table has a block twice")
                holders.update(table.blocks)
            pool.check_integrity(holders)


def _kv_tokens(request: Request) -> int:
    """The last token of a sequence never enters its KV."""
    return request.life_tokens - 1


def _release_backwards(pool: BlockPool, blocks: Sequence[int]) -> None:
    """So that a prefix loses its end first: blocks before an evicted one stay of use."""
    for block in reversed(blocks):
        pool.release(block)
