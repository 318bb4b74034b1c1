"""Tenants' pace and streams in Redis, whose clock it is."""

import asyncio

import pytest
import redis

from services.common.fleet import tenants
from services.common.fleet.tenants import Entry


async def enter(store, name, tenant="a", *, interval_s=0.0, burst=1, streams=0):
    return await store.tenants.enter((tenant, name), interval_s, burst, streams)


async def entries(store, names, **limits):
    return [(await enter(store, name, **limits)).entry for name in names]


async def test_a_burst_comes_at_once_and_then_the_pace_counts(store):
    limits = {"interval_s": 100.0, "burst": 3}
    assert await entries(store, "123", **limits) == [Entry.IN] * 3
    refused = await enter(store, "4", **limits)
    assert refused.entry is Entry.TOO_FAST
    assert 99 < refused.wait_s <= 100


async def test_the_time_that_is_told_is_when_there_is_room_again(store):
    limits = {"interval_s": 0.1, "burst": 1}
    assert await entries(store, "1", **limits) == [Entry.IN]
    refused = await enter(store, "2", **limits)
    assert refused.entry is Entry.TOO_FAST
    assert 0 < refused.wait_s <= 0.1
    await asyncio.sleep(refused.wait_s + 0.002)
    assert await entries(store, "2", **limits) == [Entry.IN]


async def test_streams_are_counted_until_they_are_given_back(store):
    assert await entries(store, "123", streams=2) == [Entry.IN, Entry.IN, Entry.TOO_MANY]
    await store.tenants.leave([("a", "1"), ("a", "unknown")])
    assert await entries(store, "34", streams=2) == [Entry.IN, Entry.TOO_MANY]


async def test_who_has_too_many_streams_spends_nothing_of_the_pace(store):
    limits = {"interval_s": 100.0, "burst": 2, "streams": 1}
    assert await entries(store, "123", **limits) == [Entry.IN, Entry.TOO_MANY, Entry.TOO_MANY]
    await store.tenants.leave([("a", "1")])
    assert await entries(store, "4", **limits) == [Entry.IN]


async def test_who_comes_too_fast_takes_no_stream(store):
    limits = {"interval_s": 100.0, "burst": 1, "streams": 2}
    assert await entries(store, "12", **limits) == [Entry.IN, Entry.TOO_FAST]
    assert await entries(store, "34", streams=2) == [Entry.IN, Entry.TOO_MANY]


async def test_asking_again_changes_nothing(store):
    for limits in ({"streams": 2}, {"interval_s": 100.0, "burst": 2}):
        assert await entries(store, "1112", tenant=str(limits), **limits) == [Entry.IN] * 4
        assert await entries(store, "3", tenant=str(limits), **limits) != [Entry.IN]


async def test_tenants_are_apart_and_may_be_nobody(store):
    for tenant in ("a", "", "b:pace:c"):
        limits = {"tenant": tenant, "interval_s": 100.0, "burst": 1, "streams": 1}
        assert await entries(store, ["1"], **limits) == [Entry.IN]
        assert await entries(store, ["2"], **limits) == [Entry.TOO_MANY]


async def test_a_dead_routers_streams_end_by_their_time_and_a_live_ones_do_not(store, monkeypatch):
    monkeypatch.setattr(tenants, "STREAM_LIFE_S", 0.3)
    async with asyncio.timeout(10):
        while not (await store.snapshot()).settled:
            await asyncio.sleep(0.05)
    assert await entries(store, ["live", "dead"], streams=2) == [Entry.IN] * 2
    async with asyncio.timeout(5):
        while await entries(store, ["next"], streams=2) != [Entry.IN]:
            await store.tenants.renew([("a", "live")])
            await asyncio.sleep(0.05)
    await store.tenants.renew([("a", "live")])
    assert await entries(store, ["other"], streams=2) == [Entry.TOO_MANY]


async def test_a_stream_that_redis_forgot_is_counted_again(store):
    await store.tenants.renew([("a", "1"), ("b", "2")])
    assert await entries(store, ["3"], streams=1) == [Entry.TOO_MANY]
    assert await entries(store, ["3"], tenant="b", streams=1) == [Entry.TOO_MANY]


async def test_all_keys_end_by_themselves_and_are_the_fleets(store, redis_server):
    await enter(store, "1", tenant="ends", interval_s=1.0, burst=5, streams=5)
    with redis.Redis.from_url(redis_server.url) as client:
        keys = client.keys("*limits:*:ends")
        assert len(keys) == 2
        assert all(key.startswith(b"{baton:") for key in keys)
        assert all(0 < client.pttl(key) <= 60_000 for key in keys)


@pytest.mark.parametrize("method", ["renew", "leave"])
async def test_nothing_to_say_asks_nothing(store, method):
    await store.close()
    await getattr(store.tenants, method)([])
