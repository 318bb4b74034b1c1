"""How the KV memory is split into pools, and how much surely fits into them.

Full-attention groups hold all of a sequence, window groups only what is in the window. So
each window pool gets what the windows of all sequences need, and a step's chunks; of what
is left, full pools get three quarters (all, where there is no window group) and window pools
the rest, as prefix cache. Knows the layout and the configuration; no pool.
"""

import math
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv.layout import KVLayout
from engine.types import Capacity

WINDOW_SHARE = 0.5
"""Most of the memory that windows may take before fewer sequences are promised a place."""
WINDOW_CACHE_SHARE = 0.25
CACHE_FACTOR = 2
"""A pool beyond this many times what all sequences at full length hold would help no one."""


def blocks_of(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens`."""
    return -(-tokens // block_size)


def peak_blocks(layout: KVLayout, group: int, kv_tokens: int) -> int:
    """Most blocks that a sequence holds whose KV grows to `kv_tokens`.

    A window group holds the window's blocks and one to write in; what a chunk of more than
    one token takes beyond them comes from `step_blocks`.
    """
    whole = max(1, blocks_of(kv_tokens, layout.block_size))
    window = layout.groups[group].window
    if window is None:
        return whole
    return min(whole, blocks_of(window - 1, layout.block_size) + 2)


def step_blocks(layout: KVLayout, group: int, max_step_tokens: int) -> int:
    """Blocks of a window group that all chunks of one step take beyond `peak_blocks`."""
    if layout.groups[group].window is None:
        return 0
    return blocks_of(max_step_tokens, layout.block_size)


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Sizes of the pools and what they promise."""

    blocks: tuple[int, ...]
    """By group."""
    capacity: Capacity
    context_tokens: int
    """Most tokens of one sequence."""


def plan_pools(layout: KVLayout, config: EngineConfig, max_position: int) -> PoolPlan:
    """Split `config.kv_bytes`. Raises ConfigError where not even one sequence would fit."""
    groups = range(len(layout.groups))
    full = [group for group in groups if layout.groups[group].window is None]
    windows = [group for group in groups if layout.groups[group].window is not None]
    cache_share = 0.0 if not windows else WINDOW_CACHE_SHARE if full else 1.0
    one = _window_blocks(layout, config, max_position, windows, 1)
    needed = _bytes(layout, one) + math.ceil(_row_bytes(layout, full) / (1 - cache_share or 1))
    if config.kv_bytes < needed:
        raise ConfigError(
            f"kv_bytes ({config.kv_bytes}) is too small for one sequence of this model: "
            f"it takes at least {needed}"
        )
    sequences = _sequences(layout, config, max_position, windows, WINDOW_SHARE if full else 1.0)
    blocks = _window_blocks(layout, config, max_position, windows, sequences)
    rest = config.kv_bytes - _bytes(layout, blocks)
    for members, share in ((full, 1 - cache_share), (windows, cache_share)):
        for group in members:
            more = int(rest * share) // _row_bytes(layout, members)
            blocks[group] = blocks.get(group, 0) + more
    most = CACHE_FACTOR * config.max_sequences * blocks_of(max_position, layout.block_size)
    sizes = tuple(
        min(blocks[group], most + step_blocks(layout, group, config.max_step_tokens))
        for group in groups
    )
    return _promise(layout, sizes, sequences, max_position, full)


def _promise(
    layout: KVLayout, sizes: tuple[int, ...], sequences: int, max_position: int, full: list[int]
) -> PoolPlan:
    """Every sequence may leave all but one slot of its last block empty, so many sequences
    share fewer tokens than one: promise a place to so many that most of the pool is left."""
    if not full:
        return PoolPlan(sizes, Capacity(sequences, sequences * max_position), max_position)
    smallest = min(sizes[group] for group in full)
    sequences = min(sequences, max(1, smallest // 2))
    kv_tokens = smallest * layout.block_size - (sequences - 1) * (layout.block_size - 1)
    return PoolPlan(sizes, Capacity(sequences, kv_tokens), min(max_position, kv_tokens))


def _sequences(
    layout: KVLayout, config: EngineConfig, max_position: int, windows: list[int], share: float
) -> int:
    """Most sequences whose windows take no more than `share` of the memory; at least one."""
    for sequences in range(config.max_sequences, 1, -1):
        needed = _window_blocks(layout, config, max_position, windows, sequences)
        if _bytes(layout, needed) <= config.kv_bytes * share:
            return sequences
    return 1


def _window_blocks(
    layout: KVLayout, config: EngineConfig, max_position: int, windows: list[int], sequences: int
) -> dict[int, int]:
    return {
        group: sequences * peak_blocks(layout, group, max_position)
        + step_blocks(layout, group, config.max_step_tokens)
        for group in windows
    }


def _row_bytes(layout: KVLayout, groups: list[int]) -> int:
    """Bytes of one block in each of `groups`."""
    return sum(layout.block_bytes(group) for group in groups)


def _bytes(layout: KVLayout, blocks: dict[int, int]) -> int:
    return sum(count * layout.block_bytes(group) for group, count in blocks.items())
