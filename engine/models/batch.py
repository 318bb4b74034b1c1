"""What one step computes: ragged tokens of several sequences, and where their KV lies.

Built by the runner, read by the models. Block ids are pool indices; nothing here knows who
owns a block or how it came there.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """One KV group's view of the batch."""

    block_tables: Tensor
    """Int64 [sequences, max_blocks]: pool blocks that hold a sequence's tokens, in order,
    from block number `first_block` of the sequence on. Rows are padded with any valid id."""
    first_block: list[int]
    """Per sequence, the number of its block in column 0. Blocks behind the window need not
    be in the table, so this is at most `first_needed_block` of the sequence's first query."""
    slot_blocks: Tensor
    """Int64 [tokens]: the pool block that takes each new token's keys and values."""
    slot_offsets: Tensor
    """Int64 [tokens]: the token's place in that block."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's input. Sequences lie one after another; each has at least one new token."""

    token_ids: Tensor
    """Int64 [tokens]."""
    positions: Tensor
    """Int64 [tokens]: of each token in its sequence, ascending by one."""
    query_starts: list[int]
    """[sequences + 1]: sequence i has rows query_starts[i] up to query_starts[i + 1]."""
    context_lengths: list[int]
    """[sequences]: tokens in KV once this step has written its own."""
    groups: tuple[GroupBatch, ...]
    """In the order of the model's `kv_groups()`."""
    logits_rows: Tensor
    """Int64 [n]: the rows of `token_ids` whose logits are wanted, in the order wanted."""
