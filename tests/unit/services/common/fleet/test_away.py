"""Redis stops, freezes, forgets."""

import asyncio
import time

import pytest
import redis

from baton.errors import Unavailable
from baton.policy.fleet import Role
from services.common.fleet.store import FleetStore
from tests.support.fleet import registered, until, worker
from tests.support.fleet_store import HERE, claim, plan, ticket

TICKET = ticket("t", 1.0, None, 10)


@pytest.fixture
async def store(own_redis):
    store = FleetStore(own_redis.url, "f", timeout_s=0.5)
    yield store
    await store.close()


async def test_scripts_are_loaded_again_into_a_redis_that_lost_them(own_redis, store):
    await store.enqueue(TICKET)
    with redis.Redis.from_url(own_redis.url) as client:
        client.script_flush()
    await store.enqueue(TICKET)
    assert (await store.snapshot()).waiting == 1


async def test_a_restart_between_two_calls_is_not_noticed(own_redis, store):
    before = await store.enqueue(TICKET)
    own_redis.restart()
    after = await store.enqueue(TICKET)
    assert after.registration != before.registration
    assert store.available


async def test_a_stopped_redis_is_unavailable_at_once(own_redis):
    store = FleetStore(own_redis.url, "f", timeout_s=30.0)
    await store.snapshot()
    own_redis.stop()
    begin = time.monotonic()
    with pytest.raises(Unavailable):
        await store.enqueue(TICKET)
    assert time.monotonic() - begin < 10.0
    assert not store.available
    await store.close()


async def test_a_frozen_redis_is_unavailable_within_the_deadline(own_redis, store):
    await store.snapshot()
    with own_redis.frozen():
        begin = time.monotonic()
        with pytest.raises(Unavailable):
            await store.enqueue(TICKET)
        assert 0.4 < time.monotonic() - begin < 3.0

        begin = time.monotonic()
        with pytest.raises(Unavailable):
            await store.enqueue(TICKET)
        assert time.monotonic() - begin < 0.4, "only a probe waits once it is known to be away"

        with pytest.raises(Unavailable):
            await store.snapshot()
    await store.snapshot()
    await store.enqueue(TICKET)
    assert (await store.snapshot()).waiting == 1


async def test_nothing_expires_because_redis_was_silent(own_redis, store):
    async with asyncio.timeout(5):
        while not (await store.snapshot()).settled:
            await store.heartbeat(worker(), 0.3)
            await asyncio.sleep(0.05)
    assert await store.claim(claim(), [plan(worker())], 0.5) is not None
    with own_redis.frozen():
        await asyncio.sleep(1.5)
    snapshot = await store.snapshot()
    assert not snapshot.settled
    assert len(snapshot.workers) == snapshot.claims == 1
    async with asyncio.timeout(5):
        while (snapshot := await store.snapshot()).claims:
            await asyncio.sleep(0.05)
    assert snapshot.settled


async def test_a_stream_of_turns_goes_on_after_a_restart(own_redis, store):
    came = []

    async def listen():
        async for ticket_id in store.turns(HERE):
            came.append(ticket_id)

    task = asyncio.create_task(listen())
    try:
        for _ in range(2):
            await store.enqueue(TICKET)
            await store.heartbeat(worker(), 0.5)
            await until(lambda: came == ["t"])
            came.clear()
            own_redis.restart()
    finally:
        task.cancel()


async def test_registry_registers_again_with_an_empty_redis(own_redis, store):
    async with registered(own_redis.url, "f", worker("p", Role.PREFILL), worker("d")):
        assert len((await store.snapshot()).workers) == 2
        own_redis.restart()
        async with asyncio.timeout(5):
            while len((await store.snapshot()).workers) != 2:
                await asyncio.sleep(0.02)
    assert (await store.snapshot()).workers == ()


async def test_registry_outlives_a_redis_that_is_away(own_redis, store):
    own_redis.stop()
    async with registered(own_redis.url, "f", worker()):
        await asyncio.sleep(0.3)
        own_redis.restart()
        async with asyncio.timeout(5):
            while len((await store.snapshot()).workers) != 1:
                await asyncio.sleep(0.02)


async def test_registry_closes_while_redis_is_away(own_redis):
    async with registered(own_redis.url, "f", worker()):
        own_redis.stop()


async def test_claims_that_were_lost_are_released_without_an_error(own_redis, store):
    await store.heartbeat(worker(), 0.5)
    own_redis.restart()
    await store.release([("w", claim())])
    await store.renew([("w", claim())], 1.0)
    assert (await store.snapshot()).claims == 0
