"""failures.md, 25: Redis restarts empty, is silent or away under load; no request fails of it."""

import asyncio
import signal

import pytest

from tests.faults.load import Work, ended, mixed, ready, under_load

LONG = 10.0


@pytest.fixture(scope="module")
def work(oracle):
    return Work.of(mixed(25), oracle)


async def test_restarts_empty_again_and_again(pairs, work):
    async with under_load(pairs, work) as load:
        for _ in range(4):
            await ended(pairs, "valkey", signal.SIGKILL)
            pairs.start("valkey")
            await load.until(12)
        await ready(pairs)


async def test_ten_seconds_frozen(pairs, work):
    async with under_load(pairs, work) as load:
        with pairs.stopped("valkey"):
            before = len(load.outcomes)
            await asyncio.sleep(LONG)
            assert len(load.outcomes) > before, "nothing was served while Redis was silent"
        await ready(pairs)


async def test_ten_seconds_of_refused_connections(pairs, work):
    async with under_load(pairs, work) as load:
        await ended(pairs, "valkey", signal.SIGKILL)
        before = len(load.outcomes)
        await asyncio.sleep(LONG)
        assert len(load.outcomes) > before + 10, "nearly nothing was served while Redis was away"
        pairs.start("valkey")
        await ready(pairs)


async def test_a_slow_network_to_it(pairs, work):
    async with under_load(pairs, work) as load:
        with pairs.proxies["valkey"].delayed(0.1):
            await load.until(20)


async def test_connections_that_break_and_that_hang(pairs, work):
    async with under_load(pairs, work) as load:
        for _ in range(5):
            pairs.proxies["valkey"].cut()
            await load.until(5)
        with pairs.proxies["valkey"].stalled():
            await asyncio.sleep(2.0)
        with pairs.proxies["valkey"].refusing():
            await asyncio.sleep(2.0)
        await load.until(5)


async def test_it_says_so_while_it_is_away(pairs):
    await ended(pairs, "valkey", signal.SIGKILL)
    try:
        async with asyncio.timeout(5.0):
            while (await asyncio.to_thread(pairs.fleet)).queue.redis_available:
                await asyncio.sleep(0.05)
    finally:
        pairs.start("valkey")
    await ready(pairs)
