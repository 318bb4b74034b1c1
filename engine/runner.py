"""Runs the model on one step's chunks and samples. Knows tensors; keeps no state of sequences."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.kv.cache import BlockTable, KVCache
from engine.models.batch import ForwardBatch, GroupBatch
from engine.sampler import sample
from engine.scheduler import Chunk
from engine.types import SampledToken


class Model(Protocol):
    """What the runner needs of a model."""

    def forward(self, batch: ForwardBatch, kv: Sequence[Tensor]) -> Tensor:
        """Write the new tokens' KV to the pools; the wanted rows' logits [rows, vocab]."""
        ...


class Runner:
    """One model on one device."""

    def __init__(self, model: Model, cache: KVCache, device: str) -> None:
        self._model = model
        self._pools = cache.storage.tensors
        self._block_size = cache.layout.block_size
        self._device = device

    def run(self, chunks: Sequence[Chunk]) -> list[list[SampledToken]]:
        """Compute the chunks' KV; by chunk, the tokens sampled, none where it is not the last."""
        with torch.inference_mode():
            logits = self._model.forward(self._batch(chunks), self._pools)
            rows = [chunk.sequence.next_sample() for chunk in chunks if chunk.samples]
            tokens = iter(sample(logits, rows) if rows else ())
        return [[next(tokens) for _ in range(chunk.samples)] for chunk in chunks]

    def _batch(self, chunks: Sequence[Chunk]) -> ForwardBatch:
        token_ids: list[int] = []
        starts = [0]
        wanted: list[int] = []
        for chunk in chunks:
            token_ids += chunk.sequence.tokens[chunk.start : chunk.end]
            starts.append(len(token_ids))
            wanted += range(len(token_ids) - chunk.samples, len(token_ids))
        positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
        offsets = self._tensor(positions % self._block_size)
        return ForwardBatch(
            token_ids=self._tensor(np.array(token_ids)),
            positions=self._tensor(positions),
            query_starts=starts,
            context_lengths=[chunk.end for chunk in chunks],
            groups=tuple(
                self._group(chunks, [chunk.sequence.kv.tables[group] for chunk in chunks], offsets)
                for group in range(len(self._pools))
            ),
            logits_rows=self._tensor(np.array(wanted, dtype=np.int64)),
        )

    def _group(
        self, chunks: Sequence[Chunk], tables: Sequence[BlockTable], offsets: Tensor
    ) -> GroupBatch:
        width = max(len(table.blocks) for table in tables)
        rows = np.zeros((len(tables), width), dtype=np.int64)
        slots: list[int] = []
        for row, table, chunk in zip(rows, tables, chunks, strict=True):
            row[: len(table.blocks)] = table.blocks
            first, size = table.first, self._block_size
            slots += [table.blocks[p // size - first] for p in range(chunk.start, chunk.end)]
        return GroupBatch(
            block_tables=self._tensor(rows),
            first_block=[table.first for table in tables],
            slot_blocks=self._tensor(np.array(slots)),
            slot_offsets=offsets,
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)
