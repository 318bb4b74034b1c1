"""Where each query's keys lie: worked out once per step and KV group, for all its layers.

Sequences with one query are padded together, those of similar length with each other;
a sequence with more queries stands alone. Keys behind the window are not gathered at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SingleQueries:
    """Sequences with one query each."""

    query_rows: Tensor
    """Int64 [sequences]."""
    key_rows: Tensor
    """Int64 [sequences * keys]: token rows of the layer; padding repeats the last token."""
    mask: Tensor | None
    """Bool [sequences, 1, 1, keys], true where a key counts; None: all do."""


@dataclass(frozen=True, slots=True)
class ManyQueries:
    """One sequence with several queries, which are its newest tokens."""

    first_row: int
    queries: int
    key_rows: Tensor
    """Int64 [keys]: token rows of the layer, up to the last query's own."""
    mask: Tensor
    """Bool [queries, keys], true where a query sees a key."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Covers every query row once."""

    parts: tuple[SingleQueries | ManyQueries, ...]
    all_single: bool
    """There is one part, of single queries in the order of the rows."""
    layer_rows: int
    """Tokens that the pool's blocks span, from the first to the last of a layer's view."""


PlanAttention = Callable[
    [Tensor, Sequence[int], Sequence[int], Sequence[int], int | None, Tensor], AttentionPlan
]


def token_rows_per_block(kv: Tensor) -> int:
    """How far apart blocks lie in `kv`, a pool or a layer's view, counted in tokens."""
    token = kv.stride(-3)
    if kv.stride(-1) != 1 or kv.stride(-2) != kv.shape[-1] or token != kv.shape[-2:].numel():
        raise ValueError("a token's keys must lie contiguously, and tokens next to each other")
    if kv.stride(0) % token:
        raise ValueError("blocks must lie a whole number of tokens apart")
    return kv.stride(0) // token


def plan_attention(
    block_tables: Tensor,
    first_block: Sequence[int],
    query_starts: Sequence[int],
    context_lengths: Sequence[int],
    window: int | None,
    kv: Tensor,
) -> AttentionPlan:
    """Plans for a batch's block tables, [sequences, blocks] from block `first_block` on.

    `kv` is the pool (or one layer's view) whose block size and strides count. Reads no KV.
    """
    block_size, block_rows = kv.shape[-3], token_rows_per_block(kv)
    buckets: dict[int, list[int]] = {}
    parts: list[SingleQueries | ManyQueries] = []
    for index, context in enumerate(context_lengths):
        start, queries = query_starts[index], query_starts[index + 1] - query_starts[index]
        if queries == 1:
            visible = context if window is None else min(context, window)
            buckets.setdefault(visible.bit_length(), []).append(index)
        elif queries:
            low = 0 if window is None else max(0, context - queries - window + 1)
            positions = torch.arange(low, context, device=block_tables.device)
            blocks = block_tables[index][positions // block_size - first_block[index]]
            key_rows = blocks * block_rows + positions % block_size
            asking = positions[-queries:, None]
            mask = positions <= asking
            if window is not None:
                mask &= positions > asking - window
            parts.append(ManyQueries(start, queries, key_rows, mask))
    for members in buckets.values():
        tables = block_tables if len(members) == len(context_lengths) else block_tables[members]
        parts.append(
            _single_queries(
                tables,
                [first_block[i] for i in members],
                [query_starts[i] for i in members],
                [context_lengths[i] for i in members],
                window,
                block_size,
                block_rows,
            )
        )
    rows = (kv.shape[0] - 1) * block_rows + block_size if kv.shape[0] else 0
    return AttentionPlan(tuple(parts), len(parts) == 1 and len(buckets) == 1, rows)


def _single_queries(
    tables: Tensor,
    first_block: list[int],
    rows: list[int],
    contexts: list[int],
    window: int | None,
    block_size: int,
    block_rows: int,
) -> SingleQueries:
    device = tables.device
    counts = contexts if window is None else [min(context, window) for context in contexts]
    keys = max(counts)
    padded = min(counts) < keys
    # [sequences, keys]: positions within the table
    last = torch.tensor(contexts, device=device).sub_(1)[:, None]
    low = last - torch.tensor(counts, device=device).sub_(1)[:, None]
    positions = low + torch.arange(keys, device=device)
    mask = None
    if padded:
        mask = (positions <= last)[:, None, None, :]
        positions = torch.minimum(positions, last)
    positions -= torch.tensor(first_block, device=device)[:, None] * block_size
    columns = positions // block_size
    key_rows = tables.gather(1, columns) * block_rows + (positions - columns * block_size)
    return SingleQueries(torch.tensor(rows, device=device), key_rows.flatten(), mask)
