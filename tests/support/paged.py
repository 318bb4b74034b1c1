"""Drives a model's forward over paged pools, with block ids dealt in any order.

No scheduler and no cache: a `PagedSequence` is tokens and a block table per group, and
`step` computes the next tokens of several at once.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kv.layout import KVLayout
from engine.models import CausalLM, ForwardBatch, GroupBatch


class PagedSequence:
    """A sequence's computed length and its blocks, one list per group."""

    def __init__(self, groups: int) -> None:
        self.computed = 0
        self.blocks: list[list[int]] = [[] for _ in range(groups)]


class PagedDriver:
    """Pools for one model. `shuffle` deals block ids in random order; unused slots hold NaN."""

    def __init__(
        self,
        model: CausalLM,
        *,
        block_size: int = 16,
        blocks: int = 64,
        dtype: torch.dtype = torch.float32,
        shuffle: bool = True,
        trim_window: bool = True,
    ) -> None:
        self.model = model
        self.layout = KVLayout(
            model_digest="test", weight_format="test", dtype=dtype, block_size=block_size,
            groups=model.kv_groups(), kernel_family=model.kernels.family,
        )  # fmt: skip
        count = range(len(self.layout.groups))
        self.pools = [
            torch.full((blocks, *self.layout.block_shape(group)), float("nan"), dtype=dtype)
            for group in count
        ]
        self._free = [list(range(blocks)) for _ in count]
        if shuffle:
            for ids in self._free:
                random.Random(0).shuffle(ids)
        self._trim = trim_window

    def sequence(self) -> PagedSequence:
        """A new, empty sequence."""
        return PagedSequence(len(self.layout.groups))

    def step(
        self,
        work: Sequence[tuple[PagedSequence, Sequence[int]]],
        logits_rows: Sequence[int] | None = None,
    ) -> Tensor:
        """Computes each sequence's new tokens; logits of all rows unless some are named."""
        batch = self.batch(work, logits_rows)
        logits = self.model.forward(batch, self.pools)
        for sequence, tokens in work:
            sequence.computed += len(tokens)
        return logits

    def run(self, tokens: Sequence[int], chunks: Sequence[int]) -> Tensor:
        """Logits at every position of one sequence, computed in chunks of the given sizes.

        The last size repeats until the tokens end.
        """
        sequence, at, out, sizes = self.sequence(), 0, [], list(chunks)
        while at < len(tokens):
            size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
            out.append(self.step([(sequence, tokens[at : at + size])]))
            at += size
        return torch.cat(out)

    def batch(
        self,
        work: Sequence[tuple[PagedSequence, Sequence[int]]],
        logits_rows: Sequence[int] | None = None,
    ) -> ForwardBatch:
        """The step's input; allocates the blocks that it writes to."""
        starts = [0]
        for _, tokens in work:
            starts.append(starts[-1] + len(tokens))
        positions = [list(range(s.computed, s.computed + len(tokens))) for s, tokens in work]
        return ForwardBatch(
            token_ids=torch.tensor([t for _, tokens in work for t in tokens], dtype=torch.int64),
            positions=torch.tensor([p for of in positions for p in of], dtype=torch.int64),
            query_starts=starts,
            context_lengths=[s.computed + len(tokens) for s, tokens in work],
            groups=tuple(
                self._group(number, [s for s, _ in work], positions)
                for number in range(len(self.layout.groups))
            ),
            logits_rows=torch.tensor(
                range(starts[-1]) if logits_rows is None else logits_rows, dtype=torch.int64
            ),
        )

    def _group(
        self, number: int, sequences: Sequence[PagedSequence], positions: list[list[int]]
    ) -> GroupBatch:
        size = self.layout.block_size
        tables, first_blocks, slot_blocks, slot_offsets = [], [], [], []
        for sequence, new in zip(sequences, positions, strict=True):
            blocks = sequence.blocks[number]
            while len(blocks) * size <= new[-1]:
                blocks.append(self._free[number].pop())
            first = self.layout.first_needed_block(number, new[0]) if self._trim else 0
            tables.append(blocks[first:])
            first_blocks.append(first)
            slot_blocks += [blocks[position // size] for position in new]
            slot_offsets += [position % size for position in new]
        width = max(map(len, tables))
        return GroupBatch(
            block_tables=torch.tensor([t + [0] * (width - len(t)) for t in tables]),
            first_block=first_blocks,
            slot_blocks=torch.tensor(slot_blocks),
            slot_offsets=torch.tensor(slot_offsets),
        )
