import asyncio
from contextlib import aclosing

import pytest

from services.common.merge import merged


class Stream:
    """Yields what it is given; remembers how far it got and whether it was closed."""

    def __init__(self, *items, error=None, hang=False):
        self.items, self.error, self.hang = items, error, hang
        self.yielded = 0
        self.closed = False

    async def run(self):
        try:
            for item in self.items:
                await asyncio.sleep(0)
                self.yielded += 1
                yield item
            if self.hang:
                await asyncio.Event().wait()
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


async def collect(*streams):
    async with asyncio.timeout(5), aclosing(merged([one.run() for one in streams])) as items:
        return [item async for item in items]


async def test_nothing_is_nothing():
    assert await collect() == []
    assert await collect(Stream(), Stream()) == []


async def test_every_item_comes_once_and_each_streams_in_order():
    streams = [Stream(*((name, index) for index in range(20))) for name in "abc"]
    items = await collect(*streams)
    assert len(items) == 60
    for name in "abc":
        assert [index for one, index in items if one == name] == list(range(20))
    for _, index in items[:6]:
        assert index < 3, "all run at the same time, none ahead"


async def test_a_stream_that_waits_holds_up_nobody():
    waiting, fast = Stream(hang=True), Stream(1, 2, 3)
    async with asyncio.timeout(5), aclosing(merged([waiting.run(), fast.run()])) as items:
        assert [await anext(items) for _ in range(3)] == [1, 2, 3]
    assert waiting.closed


async def test_an_error_ends_all_and_is_raised():
    error = ValueError("broken")
    streams = [Stream(1, error=error), Stream(2, hang=True), Stream(*range(100))]
    with pytest.raises(ValueError, match="broken") as raised:
        await collect(*streams)
    assert raised.value is error
    assert all(one.closed for one in streams)


async def test_a_reader_that_leaves_closes_all():
    streams = [Stream(*range(9)) for _ in range(3)]
    async with aclosing(merged([one.run() for one in streams])) as items:
        await anext(items)
        await anext(items)
    assert all(one.closed or not one.yielded for one in streams)


async def test_a_cancelled_reader_closes_all():
    streams = [Stream(hang=True) for _ in range(3)]
    task = asyncio.create_task(collect(*streams))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(one.closed for one in streams)


async def test_streams_do_not_run_away_from_a_slow_reader():
    streams = [Stream(*range(100)) for _ in range(3)]
    async with aclosing(merged([one.run() for one in streams])) as items:
        await anext(items)
        for _ in range(50):
            await asyncio.sleep(0)
        assert sum(one.yielded for one in streams) <= 1 + 1 + 3
