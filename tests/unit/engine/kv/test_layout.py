"""Block arithmetic and the fingerprint."""

from dataclasses import replace

import pytest
import torch

from engine.kv.layout import KVGroup, KVLayout

FULL = KVGroup("full", (1, 3), kv_heads=2, head_dim=8, window=None)
WINDOW = KVGroup("window-10", (0, 2, 4), kv_heads=2, head_dim=8, window=10)
LAYOUT = KVLayout(
    model_digest="d", weight_format="float32", dtype=torch.bfloat16, block_size=4,
    groups=(FULL, WINDOW), kernel_family="torch-reference",
)  # fmt: skip


def test_block_shape_and_bytes() -> None:
    assert LAYOUT.block_shape(1) == (3, 2, 4, 2, 8)
    assert LAYOUT.block_bytes(1) == 3 * 2 * 4 * 2 * 8 * 2
    assert torch.empty(LAYOUT.block_shape(0), dtype=LAYOUT.dtype).nbytes == LAYOUT.block_bytes(0)


@pytest.mark.parametrize("window", [1, 3, 4, 10, 100])
def test_needed_blocks_hold_exactly_what_a_query_sees(window: int) -> None:
    layout = replace(LAYOUT, groups=(FULL, replace(WINDOW, window=window)))
    for position in range(60):
        seen = {p // 4 for p in range(position + 1) if position - window < p}
        assert layout.first_needed_block(1, position) == min(seen)
        assert layout.first_needed_block(0, position) == 0


def test_a_resume_needs_what_its_first_query_sees_before_it() -> None:
    for boundary in range(60):
        seen = {p // 4 for p in range(boundary) if boundary - 10 < p}
        assert set(LAYOUT.blocks_for(1, boundary)) == seen
        assert LAYOUT.blocks_for(0, boundary) == range(-(-boundary // 4))


@pytest.mark.parametrize(
    "change",
    [
        {"model_digest": "e"},
        {"weight_format": "bfloat16"},
        {"dtype": torch.float32},
        {"block_size": 8},
        {"kernel_family": "triton"},
        {"groups": (FULL,)},
        {"groups": (FULL, replace(WINDOW, window=11))},
        {"groups": (FULL, replace(WINDOW, layers=(0, 2, 5)))},
    ],
)
def test_fingerprint_tells_every_difference(change: dict) -> None:
    assert replace(LAYOUT, **change).fingerprint != LAYOUT.fingerprint
    assert replace(LAYOUT).fingerprint == LAYOUT.fingerprint
    assert len(LAYOUT.fingerprint) == 32
