"""Which blocks are put out, and that pins are counted."""

import pytest

from engine.errors import IntegrityError
from engine.kv.exports import ExportPins, is_exported
from engine.kv.pool import BlockPool
from engine.types import BlockRef
from tests.support.layouts import layout_of


def test_full_groups_put_out_every_block() -> None:
    layout = layout_of([None])
    assert all(is_exported(layout, 0, index, 42, 4) for index in range(10))


def test_window_groups_put_out_what_checkpoints_and_the_end_need() -> None:
    layout = layout_of([None, 6])  # blocks of 4: checkpoints at 16 and 32, the end at 42
    exported = {index for index in range(10) if is_exported(layout, 1, index, 42, 4)}
    needed = {index for boundary in (16, 32, 42) for index in layout.blocks_for(1, boundary)}
    assert exported == needed & set(range(10)) == {2, 3, 6, 7, 9}


def test_a_checkpoint_beyond_the_end_puts_out_nothing() -> None:
    layout = layout_of([6])
    assert {i for i in range(7) if is_exported(layout, 0, i, 28, 8)} == {5, 6}


def test_each_pin_is_released_once() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    ref = BlockRef(b"n" * 16, 0, 0, block, 4)
    pins = ExportPins([pool])
    pins.pin(ref)
    pins.pin(ref)
    pool.release(block)
    assert pins.holders(0) == {block: 2}
    pins.release([ref])
    assert pool.used == 1
    pins.release([ref])
    assert (pool.used, pins.holders(0)) == (0, {})
    with pytest.raises(IntegrityError, match="not pinned"):
        pins.release([ref])
