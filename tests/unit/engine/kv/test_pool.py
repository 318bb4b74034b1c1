"""Blocks change state as holders and names come and go, and contradictions are found."""

from collections import Counter

import pytest

from baton.naming import BlobName
from engine.errors import IntegrityError
from engine.kv.changes import CacheChanges, NameChanges
from engine.kv.pool import BlockPool


def name(text: str) -> BlobName:
    return BlobName(text.encode().ljust(16))


def test_every_block_can_be_allocated_once() -> None:
    pool = BlockPool(5)
    blocks = [pool.allocate() for _ in range(5)]
    assert sorted(blocks) == [0, 1, 2, 3, 4]
    assert (pool.available, pool.used, pool.cached) == (0, 5, 0)
    with pytest.raises(IntegrityError):
        pool.allocate()
    pool.check_integrity(Counter(blocks))


def test_a_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(1)
    block = pool.allocate()
    pool.hold(block)
    pool.release(block)
    assert pool.available == 0
    pool.release(block)
    assert pool.available == 1
    with pytest.raises(IntegrityError):
        pool.release(block)


def test_a_named_block_is_cached_and_revived() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.bind(name("a"), block)
    pool.release(block)
    assert (pool.used, pool.cached, pool.available) == (0, 1, 2)
    found = pool.find(name("a"))
    assert found == block
    pool.hold(block)
    assert (pool.used, pool.cached) == (1, 0)
    pool.check_integrity({block: 1})


def test_the_longest_unused_name_is_evicted_and_finds_nothing_then() -> None:
    pool = BlockPool(3)
    blocks = {text: pool.allocate() for text in "abc"}
    for text, block in blocks.items():
        pool.bind(name(text), block)
    for text in "bca":
        pool.release(blocks[text])
    pool.hold(blocks["b"])
    pool.release(blocks["b"])  # used again: now the newest
    assert [pool.allocate(), pool.allocate()] == [blocks["c"], blocks["a"]]
    assert pool.find(name("c")) is None
    assert pool.find(name("b")) == blocks["b"]
    pool.check_integrity({blocks["a"]: 1, blocks["c"]: 1})


def test_empty_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.bind(name("a"), block)
    pool.release(block)
    assert pool.allocate() != block
    assert pool.find(name("a")) == block


def test_the_first_block_keeps_a_name() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.bind(name("a"), first)
    pool.bind(name("a"), second)
    assert pool.find(name("a")) == first
    pool.release(second)
    assert pool.cached == 0, "the second one is empty, not cached"
    pool.check_integrity({first: 1})


def test_only_held_blocks_can_be_named_and_only_held_or_cached_ones_held() -> None:
    pool = BlockPool(1)
    with pytest.raises(IntegrityError):
        pool.bind(name("a"), 0)
    with pytest.raises(IntegrityError):
        pool.hold(0)


def test_check_integrity_finds_wrong_holders() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    for holders in ({}, {block: 2}, {block: 1, 1 - block: 1}):
        with pytest.raises(IntegrityError):
            pool.check_integrity(holders)


def test_check_integrity_finds_broken_bookkeeping() -> None:
    for damage in (
        lambda pool: pool._empty.append(pool._empty[0]),
        lambda pool: pool._empty.pop(),
        lambda pool: pool._cached.update({pool._empty[0]: None}),
        lambda pool: pool._name_of.clear(),
        lambda pool: pool._block_of.update({name("b"): 0}),
    ):
        pool = BlockPool(4)
        block = pool.allocate()
        pool.bind(name("a"), block)
        pool.release(block)
        pool.check_integrity({})
        damage(pool)
        with pytest.raises(IntegrityError):
            pool.check_integrity({})


def test_names_bound_and_lost_are_told() -> None:
    changes = NameChanges()
    pool = BlockPool(2, changes)
    first, second = pool.allocate(), pool.allocate()
    pool.bind(name("a"), first)
    pool.bind(name("a"), second)  # finds the first one as before
    assert changes.take() == CacheChanges((name("a"),), ())
    pool.release(first)
    assert not changes.take(), "a cached block keeps its name"
    assert pool.allocate() == first
    assert changes.take() == CacheChanges((), (name("a"),))


def test_a_cleared_pool_is_as_new() -> None:
    changes = NameChanges()
    pool = BlockPool(3, changes)
    blocks = [pool.allocate() for _ in range(3)]
    pool.bind(name("a"), blocks[1])
    with pytest.raises(IntegrityError, match="held"):
        pool.clear()
    for block in reversed(blocks):
        pool.release(block)
    assert pool.names == (name("a"),)
    pool.clear()
    assert (pool.available, pool.cached, pool.names) == (3, 0, ())
    assert not changes.take()
    pool.check_integrity({})
    assert [pool.allocate() for _ in range(3)] == blocks
