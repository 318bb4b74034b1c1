"""Whoever watches knows in the end what is held, however it changed and however slow they are."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from baton.naming import BlobName
from baton.v1 import kv_pb2
from services.common.blob_log import MAX_NAMES, BlobLog, Change
from services.common.integrity import BrokenInvariant

BATCH_S = 0.005


def name(number: int) -> BlobName:
    return BlobName(number.to_bytes(16, "big"))


A, B, C = (name(number) for number in range(3))


async def next_of(changes: AsyncGenerator[Change, None]) -> Change:
    async with asyncio.timeout(2):
        return await anext(changes)


class Watcher:
    """Believes what a stream tells it."""

    def __init__(self, log: BlobLog) -> None:
        self.held: set[BlobName] = set()
        self.resets = 0
        self.messages = 0
        self.task = asyncio.create_task(self._watch(log))
        self.pause_s = 0.0

    async def _watch(self, log: BlobLog) -> None:
        async with aclosing(log.watch()) as changes:
            async for change in changes:
                self.messages += 1
                assert change.sequence == self.messages
                if change.reset:
                    self.resets += 1
                    self.held.clear()
                assert self.held.isdisjoint(change.added)
                assert self.held.issuperset(change.removed)
                assert len(change.added) + len(change.removed) <= MAX_NAMES
                self.held |= set(change.added)
                self.held -= set(change.removed)
                await asyncio.sleep(self.pause_s)

    async def knows(self, names: set[BlobName]) -> None:
        async with asyncio.timeout(5):
            while self.held != names:
                await asyncio.sleep(0.002)


async def test_all_names_come_first_then_net_changes_in_batches():
    log = BlobLog(BATCH_S)
    log.reset([A, B])
    async with aclosing(log.watch()) as changes:
        assert await next_of(changes) == Change(1, True, (A, B), ())
        log.remove(A)
        log.add(C)
        log.add(C)  # says nothing new
        log.remove(name(9))  # nor does this
        assert await next_of(changes) == Change(2, False, (C,), (A,))
        log.change(added=[A], removed=[A, B])
        assert await next_of(changes) == Change(3, False, (A,), (B,))
    assert set(log.names) == {A, C}
    assert (A in log, B in log, len(log)) == (True, False, 2)


async def test_what_came_and_went_between_two_messages_is_not_told():
    log = BlobLog(BATCH_S)
    log.add(A)
    async with aclosing(log.watch()) as changes:
        await next_of(changes)
        log.change(added=[B], removed=[A])
        log.change(added=[A], removed=[B])
        pending = asyncio.create_task(next_of(changes))
        await asyncio.sleep(4 * BATCH_S)
        assert not pending.done()
        log.add(C)
        assert await pending == Change(2, False, (C,), ())


async def test_an_empty_list_is_told_too_and_silence_follows():
    log = BlobLog(BATCH_S)
    async with aclosing(log.watch()) as changes:
        assert await next_of(changes) == Change(1, True, (), ())
        pending = asyncio.create_task(next_of(changes))
        await asyncio.sleep(4 * BATCH_S)
        assert not pending.done()
        log.add(A)
        assert (await pending).added == (A,)


async def test_changes_are_gathered_for_a_while():
    log = BlobLog(0.05)
    async with aclosing(log.watch()) as changes:
        await next_of(changes)
        pending = asyncio.create_task(next_of(changes))
        for number in range(5):
            await asyncio.sleep(0.002)
            log.add(name(number))
        assert len((await pending).added) == 5


async def test_long_lists_are_cut_and_only_the_first_part_resets():
    log = BlobLog(BATCH_S)
    log.reset(name(number) for number in range(2 * MAX_NAMES + 1))
    async with aclosing(log.watch()) as changes:
        parts = [await next_of(changes) for _ in range(3)]
        assert [part.reset for part in parts] == [True, False, False]
        assert [len(part.added) for part in parts] == [MAX_NAMES, MAX_NAMES, 1]
        log.reset(name(number) for number in range(MAX_NAMES, 3 * MAX_NAMES))
        parts = [await next_of(changes) for _ in range(2)]
        assert [part.reset for part in parts] == [False, False]
        assert sum(len(part.added) for part in parts) == MAX_NAMES - 1
        assert sum(len(part.removed) for part in parts) == MAX_NAMES


async def test_who_lags_too_far_behind_gets_the_whole_list():
    log = BlobLog(BATCH_S, keep=8)
    async with aclosing(log.watch()) as changes:
        await next_of(changes)
        for number in range(8):
            log.add(name(number))
        assert not (await next_of(changes)).reset
        for number in range(9):
            log.remove(name(number))
            log.add(name(number + 100))
        change = await next_of(changes)
        assert (change.sequence, change.reset, set(change.added)) == (3, True, set(log.names))
    log.check_integrity()


async def test_names_that_change_while_a_list_is_sent_are_told_after_it():
    log = BlobLog(BATCH_S)
    log.reset(name(number) for number in range(MAX_NAMES + 1))
    async with aclosing(log.watch()) as changes:
        await next_of(changes)
        last = name(MAX_NAMES)
        log.remove(last)
        assert (await next_of(changes)).added == (last,)
        assert (await next_of(changes)).removed == (last,)


async def test_closing_ends_watchers_wherever_they_are():
    log = BlobLog(10.0)
    log.reset(name(number) for number in range(2 * MAX_NAMES))
    idle, gathering = Watcher(log), Watcher(log)
    await asyncio.sleep(0.01)
    async with aclosing(log.watch()) as changes:
        await next_of(changes)
        log.add(name(10**6))  # they gather for ten seconds now
        await asyncio.sleep(0)
        log.close()
        async with asyncio.timeout(1):
            await asyncio.gather(idle.task, gathering.task)
            assert [change async for change in changes] == []
    assert [change async for change in log.watch()] == []


async def test_a_watcher_that_leaves_leaves_nothing():
    log = BlobLog(BATCH_S)
    watcher = Watcher(log)
    await asyncio.sleep(0.01)
    assert len(log._waiting) == 1
    watcher.task.cancel()
    await asyncio.wait([watcher.task])
    assert not log._waiting
    log.add(A)


@pytest.mark.parametrize("seed", range(4))
async def test_all_watchers_agree_in_the_end(seed: int):
    source = random.Random(seed)
    log = BlobLog(0.001, keep=64)
    watchers = []
    for step in range(1500):
        if step % 300 == 0:
            watchers.append(Watcher(log))
            watchers[-1].pause_s = source.choice([0.0, 0.01])
        change = source.random()
        if change < 0.002:
            log.reset(name(source.randrange(50)) for _ in range(20))
        elif change < 0.5:
            log.add(name(source.randrange(50)))
        else:
            log.remove(name(source.randrange(50)))
        if source.random() < 0.1:
            log.check_integrity()
            await asyncio.sleep(source.random() * 0.002)
    for watcher in watchers:
        await watcher.knows(set(log.names))
    log.close()
    await asyncio.gather(*(watcher.task for watcher in watchers))


def test_a_change_that_was_not_noted_is_a_broken_invariant():
    log = BlobLog(BATCH_S)
    log.add(A)
    del log._held[A]
    with pytest.raises(BrokenInvariant, match="was not noted"):
        log.check_integrity()


def test_over_the_wire_and_back_without_what_is_no_name():
    change = Change(7, True, (A, B), (C,))
    message = kv_pb2.BlobChanges.FromString(change.to_message().SerializeToString())
    assert Change.from_message(message) == change
    message.added.append(b"short")
    message.removed.append(b"x" * 17)
    assert Change.from_message(message) == change
