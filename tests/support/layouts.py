"""KV layouts for tests of the engine's arithmetic."""

from collections.abc import Sequence

import torch

from engine.kv.layout import KVGroup, KVLayout


def layout_of(windows: Sequence[int | None], block_size: int = 4) -> KVLayout:
    """One group of one layer for each window."""
    return KVLayout(
        model_digest="model",
        weight_format="float32",
        dtype=torch.float32,
        block_size=block_size,
        groups=tuple(KVGroup(f"group-{i}", (i,), 1, 2, window) for i, window in enumerate(windows)),
        kernel_family="test",
    )
