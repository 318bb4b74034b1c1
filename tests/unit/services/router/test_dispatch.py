"""From a demand to claimed workers, with a real Redis."""

import asyncio
import time
from dataclasses import replace

import pytest

from baton.errors import Exhausted, Unavailable
from baton.policy.fleet import NOTHING, Role, Usage
from services.router.dispatch import DispatchConfig
from tests.support import fleet as support
from tests.support.fleet import demand, registered, until, worker

PREFILL, DECODE = worker("p", Role.PREFILL), worker("d")
ONE_AT_A_TIME = (
    worker("p", Role.PREFILL, capacity=Usage(1, 1000)),
    worker("d", capacity=Usage(1, 1000)),
)


def router(url, fleet, **changes):
    """One that sends prompts to prefill workers while there are any."""
    return support.router(url, fleet, DispatchConfig(**{"disaggregation": "always", **changes}))


async def assert_idle(one):
    """Nothing waits and nothing is claimed, here and in Redis."""
    await one.store.check_integrity()
    one.dispatcher.check_integrity()
    snapshot = await one.store.snapshot()
    assert (snapshot.waiting, snapshot.turns, snapshot.claims) == (0, 0, 0)
    assert all(each.pending == NOTHING for each in snapshot.workers)
    assert (one.dispatcher.waiting, one.dispatcher.holding) == (0, 0)


async def test_a_turn_claims_both_workers_and_release_frees_them(redis_server, fleet):
    async with (
        registered(redis_server.url, fleet, PREFILL, DECODE),
        router(redis_server.url, fleet) as one,
    ):
        placement = await one.dispatcher.turn(demand("r", prompt=10, most=5))
        assert (placement.prefill.worker_id, placement.decode.worker_id) == ("p", "d")
        assert one.dispatcher.held("r") == {"p", "d"}
        pending = {w.worker_id: w.pending for w in (await one.store.snapshot()).workers}
        assert pending == {"p": Usage(1, 11), "d": Usage(1, 15)}
        await one.dispatcher.release("r", "p")
        assert one.dispatcher.held("r") == {"d"}
        await one.dispatcher.release("r")
        await one.dispatcher.release("r")
        await assert_idle(one)


async def test_an_idle_fleet_places_within_milliseconds(redis_server, fleet):
    async with (
        registered(redis_server.url, fleet, PREFILL, DECODE),
        router(redis_server.url, fleet) as one,
    ):
        times = []
        for number in range(100):
            begin = time.perf_counter()
            await one.dispatcher.turn(demand(f"r{number}"))
            times.append(time.perf_counter() - begin)
            await one.dispatcher.release(f"r{number}")
        assert min(times) < 0.006  # what a busy machine adds is not ours
        await assert_idle(one)


async def test_without_prefill_workers_and_when_aggregated_decode_workers_do_all(
    redis_server, fleet
):
    async with registered(redis_server.url, fleet, DECODE), router(redis_server.url, fleet) as one:
        placement = await one.dispatcher.turn(demand("r"))
        assert placement.prefill is None
        assert placement.decode.worker_id == "d"
    async with (
        registered(redis_server.url, fleet, PREFILL, DECODE),
        router(redis_server.url, fleet, disaggregation="never") as one,
    ):
        assert (await one.dispatcher.turn(demand("r"))).prefill is None


async def test_only_workers_of_one_layout_are_paired(redis_server, fleet):
    workers = (
        worker("p1", Role.PREFILL, fingerprint="old"),
        worker("p2", Role.PREFILL, fingerprint="new"),
        worker("d1", fingerprint="old", capacity=Usage(20, 1000)),
        worker("d2", fingerprint="new", capacity=Usage(20, 1000)),
    )
    async with (
        registered(redis_server.url, fleet, *workers),
        router(redis_server.url, fleet) as one,
    ):
        for number in range(8):
            placement = await one.dispatcher.turn(demand(f"r{number}"))
            assert placement.prefill.layout_fingerprint == placement.decode.layout_fingerprint
        other = await one.dispatcher.claim_decode(demand("x"), fingerprint="new")
        assert other.layout_fingerprint == "new"
        other = await one.dispatcher.claim_decode(demand("y"), fingerprint="unknown")
        assert other.worker_id in ("d1", "d2")


async def test_a_worker_that_is_asked_for_comes_before_less_loaded_ones_while_it_has_room(
    redis_server, fleet
):
    workers = [worker(name, capacity=Usage(3, 1000)) for name in ("d1", "d2", "d3")]
    async with (
        registered(redis_server.url, fleet, *workers),
        router(redis_server.url, fleet) as one,
    ):
        claim = one.dispatcher.claim_decode
        chosen = [(await claim(demand(f"r{i}"), near="d2")).worker_id for i in range(5)]
        assert chosen[:3] == ["d2"] * 3
        assert set(chosen[3:]) == {"d1", "d3"}
        assert (await claim(demand("other"), near="gone")).worker_id in ("d1", "d3")


async def test_who_asks_first_is_served_first_over_all_routers(redis_server, fleet):
    async with (
        registered(redis_server.url, fleet, *ONE_AT_A_TIME),
        router(redis_server.url, fleet) as one,
        router(redis_server.url, fleet) as two,
    ):
        served = []

        async def request(dispatcher, name):
            await dispatcher.turn(demand(name))
            served.append(name)
            await asyncio.sleep(0.002)
            await dispatcher.release(name)

        names = [f"r{number}" for number in range(20)]
        await one.dispatcher.turn(demand("first"))
        tasks = []
        for number, name in enumerate(names):
            tasks.append(asyncio.create_task(request((one, two)[number % 2].dispatcher, name)))
            async with asyncio.timeout(5):
                while (await one.store.snapshot()).waiting <= number:
                    await asyncio.sleep(0)
        await one.dispatcher.release("first")
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)
        assert served == names
        await assert_idle(one)
        await assert_idle(two)


async def test_what_goes_on_is_served_before_what_begins(redis_server, fleet):
    async with (
        registered(redis_server.url, fleet, *ONE_AT_A_TIME),
        router(redis_server.url, fleet) as one,
    ):
        await one.dispatcher.turn(demand("first"))
        new = asyncio.create_task(one.dispatcher.turn(demand("new")))
        await until(lambda: one.dispatcher.waiting == 1)
        begun = asyncio.create_task(one.dispatcher.claim_decode(demand("begun")))
        await until(lambda: one.dispatcher.waiting == 2)
        await one.dispatcher.release("first")
        assert (await begun).worker_id == "d"
        assert not new.done()
        await one.dispatcher.release("begun")
        await new


async def test_a_worker_that_frees_room_lets_the_next_one_in(redis_server, fleet):
    state = {"d": replace(ONE_AT_A_TIME[1], running=Usage(1, 500))}
    async with (
        registered(redis_server.url, fleet, ONE_AT_A_TIME[0]),
        registered(redis_server.url, fleet, state["d"]) as (registry,),
        router(redis_server.url, fleet) as one,
    ):
        registry._describe = lambda: state["d"]
        waiting = asyncio.create_task(one.dispatcher.turn(demand("r")))
        await until(lambda: one.dispatcher.waiting == 1)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        state["d"] = ONE_AT_A_TIME[1]
        registry.poke()
        async with asyncio.timeout(1):
            await waiting


async def test_excluded_workers_are_passed_over_but_not_for_ever(redis_server, fleet):
    async with (
        registered(redis_server.url, fleet, DECODE, worker("e")),
        router(redis_server.url, fleet) as one,
    ):
        picked = await one.dispatcher.claim_decode(demand("r"), exclude={("d", "one")})
        assert picked.worker_id == "e"
        begin = time.monotonic()
        both = {("d", "one"), ("e", "one")}
        async with asyncio.timeout(5):
            await one.dispatcher.claim_decode(demand("s"), exclude=both)
        assert time.monotonic() - begin > 0.9


async def test_a_failing_prefill_worker_does_not_stop_requests(redis_server, fleet):
    async with (
        registered(redis_server.url, fleet, PREFILL, DECODE),
        router(redis_server.url, fleet) as one,
    ):
        one.view.report_failure("p", "one")
        placement = await one.dispatcher.turn(demand("r"))
        assert placement.prefill is None
        assert placement.degraded
        one.view.report_success("p", "one")
        assert (await one.dispatcher.turn(demand("s"))).prefill is not None


async def test_too_large_is_refused_at_once_and_holds_nobody_up(redis_server, fleet):
    async with (
        registered(redis_server.url, fleet, PREFILL, DECODE),
        router(redis_server.url, fleet) as one,
    ):
        async with asyncio.timeout(3):
            while not (await one.store.snapshot()).settled:
                await asyncio.sleep(0.05)
        await one.view.refresh()
        begin = time.monotonic()
        with pytest.raises(Exhausted) as refused:
            await one.dispatcher.turn(demand("large", prompt=900, most=101))
        assert refused.value.reason == "NO_WORKER_FITS"
        assert time.monotonic() - begin < 3.0
        await one.dispatcher.turn(demand("fits", prompt=899, most=101))
        await one.dispatcher.release("fits")
        await assert_idle(one)


async def test_without_workers_unavailable_after_a_while(redis_server, fleet):
    async with router(redis_server.url, fleet, patience_s=0.2) as one:
        with pytest.raises(Unavailable) as refused:
            await one.dispatcher.turn(demand("r"))
        assert refused.value.retry_after is not None
        await assert_idle(one)


async def test_a_worker_that_appears_takes_who_waits_for_one(redis_server, fleet):
    async with router(redis_server.url, fleet) as one:
        waiting = asyncio.create_task(one.dispatcher.turn(demand("r")))
        await until(lambda: one.dispatcher.waiting == 1)
        async with registered(redis_server.url, fleet, DECODE), asyncio.timeout(2):
            assert (await waiting).decode.worker_id == "d"


async def test_a_queue_that_is_too_long_refuses_at_once(redis_server, fleet):
    async with (
        registered(redis_server.url, fleet, *ONE_AT_A_TIME),
        router(redis_server.url, fleet, max_waiting=2) as one,
        router(redis_server.url, fleet, max_waiting=2) as two,
    ):
        await one.dispatcher.turn(demand("first"))
        tasks = [
            asyncio.create_task(one.dispatcher.turn(demand("a"))),
            asyncio.create_task(two.dispatcher.turn(demand("b"))),
        ]
        async with asyncio.timeout(5):
            while (await one.store.snapshot()).waiting < 2:
                await asyncio.sleep(0.005)
        for each in (one, two):
            with pytest.raises(Exhausted) as refused:
                await each.dispatcher.turn(demand("c"))
            assert refused.value.retry_after is not None
        begun = asyncio.create_task(one.dispatcher.claim_decode(demand("begun")))
        await until(lambda: one.dispatcher.waiting == 2)
        for task in (*tasks, begun):
            task.cancel()
        await asyncio.gather(*tasks, begun, return_exceptions=True)
        await one.dispatcher.release("first")
        await assert_idle(one)
        await assert_idle(two)


async def test_claims_live_as_long_as_the_request_and_not_much_longer(redis_server, fleet):
    async with (
        registered(redis_server.url, fleet, DECODE),
        router(redis_server.url, fleet, lease_s=0.6) as one,
    ):
        await one.dispatcher.turn(demand("r"))
        await asyncio.sleep(1.8)
        assert (await one.store.snapshot()).claims == 1
        one.dispatcher._claims._task.cancel()  # as if the router had died
        async with asyncio.timeout(2):
            while (await one.store.snapshot()).claims:
                await asyncio.sleep(0.02)


async def test_redis_restarts_empty_under_waiting_requests(own_redis):
    async with (
        registered(own_redis.url, "f", *ONE_AT_A_TIME),
        router(own_redis.url, "f") as one,
    ):
        await one.dispatcher.turn(demand("first"))
        tasks = [asyncio.create_task(one.dispatcher.turn(demand(f"r{n}"))) for n in range(3)]
        await until(lambda: one.dispatcher.waiting == 3)
        own_redis.restart()
        await one.dispatcher.release("first")
        async with asyncio.timeout(10):
            for task in asyncio.as_completed(tasks):
                assert (await task).prefill is not None
                for number in range(3):
                    if tasks[number].done():
                        await one.dispatcher.release(f"r{number}")
        await assert_idle(one)


@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_redis_away_the_router_goes_to_the_workers_it_knows(own_redis, how):
    limited = (PREFILL, worker("d", capacity=Usage(2, 1000)))
    async with registered(own_redis.url, "f", *limited), router(own_redis.url, "f") as one:
        await one.dispatcher.turn(demand("before"))
        if how == "stopped":
            own_redis.stop()
            await check_without_redis(one)
        else:
            with own_redis.frozen():
                await check_without_redis(one)


async def check_without_redis(one):
    begin = time.monotonic()
    placement = await one.dispatcher.turn(demand("r"))
    assert time.monotonic() - begin < 5.0
    assert placement.prefill.worker_id == "p"
    assert one.dispatcher.held("r") == {"p", "d"}

    third = asyncio.create_task(one.dispatcher.turn(demand("s")))
    fourth = asyncio.create_task(one.dispatcher.turn(demand("t")))
    await asyncio.sleep(0.1)
    assert not third.done(), "the decode worker holds two, and this router knows of both"
    await one.dispatcher.release("before")
    async with asyncio.timeout(1):
        await third
    assert not fourth.done()
    fourth.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fourth
    await one.dispatcher.release("r")
    await one.dispatcher.release("s")
    assert (one.dispatcher.waiting, one.dispatcher.holding) == (0, 0)
    one.dispatcher.check_integrity()


async def test_what_was_given_back_without_redis_is_free_when_it_returns(own_redis):
    async with registered(own_redis.url, "f", PREFILL, DECODE), router(own_redis.url, "f") as one:
        await one.dispatcher.turn(demand("r"))
        with own_redis.frozen():
            await one.dispatcher.release("r")
        async with asyncio.timeout(3):
            while (await one.store.snapshot()).claims:
                await asyncio.sleep(0.02)
        await assert_idle(one)


async def test_requests_go_on_through_an_outage(own_redis):
    """Forty requests, eight at a time, while Redis restarts empty and freezes."""
    workers = (
        worker("p", Role.PREFILL, capacity=Usage(4, 4000)),
        worker("d", capacity=Usage(8, 4000)),
    )
    async with registered(own_redis.url, "f", *workers), router(own_redis.url, "f") as one:
        places = asyncio.Semaphore(8)

        async def request(name):
            async with places:
                await one.dispatcher.turn(demand(name))
                await asyncio.sleep(0.05)
                await one.dispatcher.release(name)

        tasks = [asyncio.create_task(request(f"r{number}")) for number in range(40)]
        await asyncio.sleep(0.05)
        own_redis.restart()
        await asyncio.sleep(0.05)
        with own_redis.frozen():
            await asyncio.sleep(0.5)
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)
        async with asyncio.timeout(5):
            while True:
                snapshot = await one.store.snapshot()
                if (snapshot.waiting, snapshot.turns, snapshot.claims) == (0, 0, 0):
                    break
                await asyncio.sleep(0.05)
        await assert_idle(one)
