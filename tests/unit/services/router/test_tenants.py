"""Tenants are held to their limits over several routers, with a real Redis and without it."""

import asyncio
from contextlib import AsyncExitStack

import pytest
import redis

from baton import errors
from services.common.background import Background
from services.common.fleet.store import FleetStore, RouterId
from services.common.fleet.tenants import STREAM_LIFE_S
from services.router.limits import parse_limits
from services.router.register import Counters
from services.router.tenants import Tenants

RENEW_S = 0.05


class Router:
    """What one router has of this."""

    def __init__(self, url, fleet, limits, name, clock, timeout_s):
        self.store = FleetStore(url, fleet, timeout_s=timeout_s)
        self.background = Background(1.0)
        self.counters = Counters()
        self.name = RouterId(name)
        self.tenants = Tenants(
            parse_limits(limits),
            self.store.tenants,
            self.background,
            self.counters,
            renew_s=RENEW_S,
            clock=clock,
        )

    async def __aenter__(self):
        await self.store.take_turns(self.name)  # as a router that serves does
        self.tenants.start()
        return self

    async def __aexit__(self, *_):
        await self.tenants.close()
        await self.background.settled()
        await self.store.close()

    async def refusal(self, tenant="a"):
        with pytest.raises(errors.Exhausted) as raised:
            async with self.tenants.stream(tenant):
                pass
        return raised.value

    async def fits(self, count, tenant="a"):
        """Whether so many streams more have room, and no more than that."""
        async with AsyncExitStack() as streams:
            for _ in range(count):
                await streams.enter_async_context(self.tenants.stream(tenant))
            await self.refusal(tenant)
        await self.background.settled()


@pytest.fixture
async def routers(redis_server, fleet):
    """Makes routers of one fleet."""
    async with AsyncExitStack() as open_:

        async def make(limits, name="here", server=redis_server, clock=None, timeout_s=5.0):
            router = Router(server.url, fleet, limits, name, clock, timeout_s)
            return await open_.enter_async_context(router)

        yield make


async def test_streams_count_over_all_routers(routers):
    here, there = await routers("a=streams:3"), await routers("a=streams:3", "there")
    async with here.tenants.stream("a"), there.tenants.stream("a"):
        await here.fits(1)
        await there.fits(1)
    await here.background.settled()
    await there.background.settled()
    await there.fits(3)
    assert here.tenants.running == there.tenants.running == 0


async def test_a_refusal_says_why_and_when_to_try_again(routers):
    router = await routers("a=0.5/s burst:1,b=streams:1")
    async with router.tenants.stream("a"), router.tenants.stream("b"):
        fast, many = await router.refusal("a"), await router.refusal("b")
    assert fast.reason == "RATE_LIMITED"
    assert 1.5 < fast.retry_after <= 2
    assert many.reason == "TOO_MANY_STREAMS"
    assert 0 < many.retry_after <= 60
    assert router.counters.limited == 2


async def test_the_wait_for_a_stream_is_what_streams_took_by_now(routers):
    now_s = [0.0]
    router = await routers("a=streams:2", clock=lambda: now_s[0])
    for _ in range(60):
        async with router.tenants.stream("a"):
            now_s[0] += 8.0
    await router.background.settled()
    async with router.tenants.stream("a"), router.tenants.stream("a"):
        assert (await router.refusal()).retry_after == pytest.approx(4.0, rel=0.01)


async def test_without_limits_redis_is_not_asked(routers, redis_server):
    named = await routers("a=1/s streams:1")
    none = await routers("")
    with redis.Redis.from_url(redis_server.url) as client:
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        for router in (named, none):
            for _ in range(5):
                async with router.tenants.stream("other"):
                    pass
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before
        assert none.tenants._task is None


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, GeneratorExit])
async def test_every_end_gives_the_stream_back(routers, error):
    router = await routers("a=streams:1")
    for _ in range(3):
        with pytest.raises(error):
            async with router.tenants.stream("a"):
                raise error
        await router.background.settled()
    await router.fits(1)


async def test_a_cancel_while_redis_is_asked_gives_the_stream_back(routers):
    router = await routers("a=streams:1")
    for turns in range(12):  # at each await on the way in
        task = asyncio.create_task(router.refusal())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await router.background.settled()
    async with asyncio.timeout(STREAM_LIFE_S / 2):  # not because it ended by its time
        while True:
            try:
                await router.fits(1)
                return
            except errors.Exhausted:
                await asyncio.sleep(0.01)


async def test_what_runs_stays_counted_even_when_redis_came_back_empty(routers, own_redis):
    here = await routers("a=streams:1", server=own_redis)
    there = await routers("a=streams:1", "there", server=own_redis)
    async with here.tenants.stream("a"):
        own_redis.restart()
        async with asyncio.timeout(5):
            while not own_redis.keys("*limits:streams:a"):
                await asyncio.gather(here.store.snapshot(), there.store.snapshot())
                await asyncio.sleep(RENEW_S)
        assert (await there.refusal()).reason == "TOO_MANY_STREAMS"
        assert there.store.available


async def test_without_redis_a_router_holds_tenants_to_its_part(routers, own_redis):
    limits = "a=streams:4,b=100/s burst:4,*=streams:1"
    here = await routers(limits, server=own_redis)
    await routers(limits, "there", server=own_redis)
    await here.fits(4)
    own_redis.stop()
    await here.fits(2)
    await here.fits(1, tenant="anyone")
    for _ in range(2):
        async with here.tenants.stream("b"):
            pass
    refused = await here.refusal("b")
    assert refused.reason == "RATE_LIMITED"
    assert 0 < refused.retry_after <= 0.02
    await asyncio.sleep(refused.retry_after + 0.002)
    async with here.tenants.stream("b"):
        pass
    assert here.tenants.running == 0


async def test_a_frozen_redis_holds_nobody_up_for_long(routers, own_redis):
    router = await routers("a=streams:1", server=own_redis, timeout_s=0.5)
    with own_redis.frozen():
        async with asyncio.timeout(2):
            async with router.tenants.stream("a"):
                await router.refusal()
