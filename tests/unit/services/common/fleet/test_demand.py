"""What clients have asked of a fleet, and what its processes keep, in Redis."""

import asyncio
from dataclasses import replace

import pytest
import redis

from baton.errors import Unavailable
from baton.naming import new_id
from services.common.fleet.demand import Batch, DemandTotals
from services.common.fleet.store import FleetStore

ASKED = DemandTotals(*(0.5 + number for number in range(13)))


async def test_a_fleet_that_nobody_asked_has_no_demand(store):
    assert await store.demand() == DemandTotals()


async def test_what_is_added_adds_up_over_all_processes(store, redis_server):
    other = FleetStore(redis_server.url, "another", timeout_s=10.0)
    await other.add_demand(ASKED, Batch("router", 1))
    for number in (1, 2):
        await store.add_demand(ASKED, Batch("router", number))
    sources = [f"router-{number}" for number in range(10)]
    one = DemandTotals(requests=1)
    await asyncio.gather(*(store.add_demand(one, Batch(name, 1)) for name in sources))
    assert await store.demand() == ASKED + ASKED + DemandTotals(requests=10)
    assert await other.demand() == ASKED
    await other.close()


async def test_large_sums_stay_exact(store):
    big = DemandTotals(new_pairs=2.0**52, output_context=1e15)
    await store.add_demand(big, Batch("router", 1))
    await store.add_demand(DemandTotals(new_pairs=1, output_context=1), Batch("router", 2))
    assert await store.demand() == big + DemandTotals(new_pairs=1, output_context=1)


async def test_a_batch_counts_once_however_often_it_is_sent(store):
    for number in (1, 1, 2, 2, 1):
        await store.add_demand(ASKED, Batch("router", number))
    await store.add_demand(ASKED, Batch("another", 1))
    assert await store.demand() == ASKED + ASKED + ASKED


async def test_nothing_to_add_asks_nothing(store):
    await store.close()
    await store.add_demand(DemandTotals(), Batch("router", 1))


async def test_a_source_is_forgotten_in_time_and_the_sums_are_not(own_redis):
    store = FleetStore(own_redis.url, "f")
    await store.add_demand(ASKED, Batch("router", 1))
    with redis.Redis.from_url(own_redis.url) as client:
        assert 0 < client.ttl("{baton:f}:demand:router") <= 3600
        assert client.ttl("{baton:f}:demand") == -1
    await store.close()


async def test_redis_that_comes_back_empty_begins_anew(own_redis):
    store = FleetStore(own_redis.url, "f")
    await store.add_demand(ASKED, Batch("router", 1))
    await store.keep("history", b"1")
    own_redis.stop()
    with pytest.raises(Unavailable):
        await store.demand()
    own_redis.restart()
    await store.snapshot()
    assert await store.demand() == DemandTotals()
    assert await store.kept("history") is None
    await store.close()


async def test_a_value_is_kept_until_the_next_of_its_name(store):
    assert await store.kept("history") is None
    value = bytes(range(256)) * 100
    await store.keep("history", b"before")
    await store.keep("history", value)
    await store.keep("other", b"")
    assert await store.kept("history") == value
    assert await store.kept("other") == b""


@pytest.mark.parametrize("junk", ["nan", "inf", "-1e9", "1e300", "many", ""])
async def test_a_sum_that_is_none_is_nothing_and_begins_anew(redis_server, junk):
    fleet = new_id("fleet")
    store = FleetStore(redis_server.url, fleet, timeout_s=10.0)
    await store.add_demand(ASKED, Batch("router", 1))
    with redis.Redis.from_url(redis_server.url) as client:
        client.hset(f"{{baton:{fleet}}}:demand", "prompt_tokens", junk)
    assert await store.demand() == replace(ASKED, prompt_tokens=0.0)
    await store.add_demand(ASKED, Batch("router", 2))
    assert await store.demand() == replace(ASKED + ASKED, prompt_tokens=ASKED.prompt_tokens)
    await store.close()
