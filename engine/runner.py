"""Runs the model on one step's chunks and samples. Knows tensors; keeps no state of sequences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.kv.cache import KVCache
from engine.kv.sequence_kv import BlockTable
from engine.models.batch import ForwardBatch, GroupBatch
from engine.sampler import report, sample
from engine.scheduler import Chunk
from engine.types import SampledToken


class Model(Protocol):
    """What the runner needs of a model."""

    def hidden(self, batch: ForwardBatch, kv: Sequence[Tensor]) -> Tensor:
        """Write the new tokens' KV to the pools; what `logits` takes, [tokens, ...]."""
        ...

    def logits(self, x: Tensor) -> Tensor:
        """Float32 logits [rows, vocab] of rows of `hidden`."""
        ...


REPORT_ROWS = 64
"""Prompt positions whose logits are in memory at once: 64 MiB, and as much for their
probabilities, of a vocabulary of 262,144."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What a chunk brought."""

    sampled: list[SampledToken]
    """A token for each choice; none where the chunk is not its sequence's last, or none may be
    drawn."""
    prompt_logprobs: list[SampledToken]
    """Of the prompt tokens after the chunk's `reported` positions."""


class Runner:
    """One model on one device."""

    def __init__(self, model: Model, cache: KVCache, device: str) -> None:
        self._model = model
        self._pools = cache.storage.tensors
        self._block_size = cache.layout.block_size
        self._device = device

    def run(self, chunks: Sequence[Chunk]) -> list[ChunkResult]:
        """Compute the chunks' KV; what each brought."""
        with torch.inference_mode():
            batch = self._batch(chunks)
            hidden = self._model.hidden(batch, self._pools)
            sampled = iter(self._sampled(chunks, hidden, batch.logits_rows))
            return [
                ChunkResult(next(sampled) if chunk.samples else [], self._report(chunk, hidden, at))
                for chunk, at in zip(chunks, batch.query_starts[:-1], strict=True)
            ]

    def _sampled(
        self, chunks: Sequence[Chunk], hidden: Tensor, logits_rows: Tensor
    ) -> list[list[SampledToken]]:
        """What was drawn for each chunk that samples: nothing where no token may be."""
        wanted = [chunk.sequence.next_sample() for chunk in chunks if chunk.samples]
        rows = [row for row in wanted if row is not None]
        if not rows:
            return [[] for _ in wanted]
        if len(rows) < len(wanted):
            kept = [place for place, row in enumerate(wanted) if row is not None]
            logits_rows = logits_rows[self._tensor(np.array(kept))]
        drawn = iter(sample(self._model.logits(hidden[logits_rows]), rows))
        return [[] if row is None else next(drawn) for row in wanted]

    def _report(self, chunk: Chunk, hidden: Tensor, at: int) -> list[SampledToken]:
        """The chunk's prompt log probabilities; its rows of `hidden` begin at row `at`."""
        reported, sequence = chunk.reported, chunk.sequence
        count = sequence.request.sampling.prompt_logprobs or 0
        tokens: list[SampledToken] = []
        for start in range(reported.start, reported.stop, REPORT_ROWS):
            end = min(start + REPORT_ROWS, reported.stop)
            logits = self._model.logits(hidden[at + start - chunk.start : at + end - chunk.start])
            tokens += report(logits, sequence.tokens[start + 1 : end + 1], count)
        return tokens

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
