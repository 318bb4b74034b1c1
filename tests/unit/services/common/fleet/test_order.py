"""The order of the queue: deadlines, shares, lost targets, and room for prompts."""

import asyncio

import pytest

from baton.naming import new_id
from baton.policy.fleet import Load, Role, Usage
from baton.policy.score import Order, fair_share, order
from services.common.fleet.store import FleetStore, Place, RouterId, TicketId
from tests.support.fleet import worker
from tests.support.fleet_store import HERE, THERE, Turns, candidate, claim, plan, prompt, ticket

PERIOD_S = 5.0


@pytest.fixture
async def pair(redis_server):
    """Two routers' stores of one fleet."""
    fleet = new_id("fleet")
    stores = [FleetStore(redis_server.url, fleet, timeout_s=10.0) for _ in range(2)]
    yield stores
    await stores[0].check_integrity()
    for one in stores:
        await one.close()


async def fill(store, sequences=1, running=0, period_s=PERIOD_S, **kwargs):
    """One prefill and one decode worker."""
    for name, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
        capacity, used = Usage(sequences, 10_000), Usage(running, 10 * running)
        one = worker(name, role, capacity=capacity, running=used, **kwargs)
        await store.heartbeat(one, period_s)


async def order_served(store, count, lookahead_s=1.0):
    """The tickets in the order in which a fleet that serves one at a time takes them."""
    async with Turns(store) as turns, asyncio.timeout(20):
        await fill(store, lookahead_s=lookahead_s)
        for number in range(count):
            while len(turns.came) == number:
                await asyncio.sleep(0.001)
            await store.leave([turns.came[number]])
        return turns.came


async def arrive(store, name, work_s=1.0, weights=None, **asked):
    """A request as a router queues it, for a fleet of one worker."""
    tenant = asked.get("tenant", "")
    clocks = (await store.snapshot()).clocks
    share = fair_share(tenant, clocks, weights or {})
    stands = order(**{"ttft_target_s": 2.0, "share": share, **asked})
    return await store.enqueue(prompt(name, work_s, stands))


async def test_two_routers_share_one_order(pair):
    one, other = pair
    await fill(one, running=1)
    for number in range(10):
        store, router = ((one, HERE), (other, THERE))[number % 2]
        score = (number * 7) % 10
        assert (await store.enqueue(ticket(f"t{score}", score, router=router))).place
    async with Turns(one, HERE) as here, Turns(other, THERE) as there, asyncio.timeout(10):
        await fill(one)
        served = []
        while len(served) < 10:
            for turns, store in ((here, one), (there, other)):
                if turns.came:
                    served += turns.came
                    await store.leave([turns.came.pop()])
            await asyncio.sleep(0.001)
    assert served == [f"t{number}" for number in range(10)]


async def test_a_flood_of_one_tenant_does_not_hold_up_another(store):
    for number in range(40):
        await arrive(store, f"flood{number}", tenant="loud")
    for number in range(5):
        await arrive(store, f"b{number}", tenant="quiet")
    served = await order_served(store, 45)
    places = [served.index(f"b{number}") for number in range(5)]
    assert all(place <= 3 * number + 2 for number, place in enumerate(places)), places


async def test_shares_follow_the_weights(store):
    weights = {"large": 3.0, "small": 1.0}
    for number in range(40):
        for tenant in ("large", "small"):
            await arrive(store, f"{tenant}{number}", tenant=tenant, weights=weights)
    served = await order_served(store, 80)
    large = sum(name.startswith("large") for name in served[:40])
    assert 27 <= large <= 33


async def test_a_tenant_that_asked_for_little_is_forgotten(store):
    await arrive(store, "a", 0.05, tenant="brief")
    await arrive(store, "b", 30.0, tenant="long")
    await asyncio.sleep(0.2)
    clocks = (await store.snapshot()).clocks
    assert set(clocks) == {"long/interactive"}
    assert 29 < clocks["long/interactive"] < 61


async def test_queueing_again_costs_nothing(store):
    stands = order(ttft_target_s=2.0, tenant="a")
    for _ in range(3):
        await store.enqueue(prompt("t", 10.0, stands))
    assert (await store.snapshot()).clocks["a/interactive"] <= 10.0


async def test_who_is_not_let_in_pays_nothing(store):
    await store.enqueue(prompt("t", 10.0, order(ttft_target_s=2.0, tenant="a")), 0)
    assert (await store.snapshot()).clocks == {}


async def test_batch_requests_get_their_least_share_in_a_flood(store):
    for number in range(4):
        await arrive(store, f"batch{number}", batch=True, ttft_target_s=600.0)
    for number in range(80):
        await arrive(store, f"fast{number:02}", ttft_target_s=5.0 + 10 * (number // 20))
    served = await order_served(store, 84)
    assert served == [
        name
        for tens in range(4)
        for name in (f"batch{tens}", *(f"fast{20 * tens + ones:02}" for ones in range(20)))
    ]


async def test_batch_requests_come_by_their_deadline_where_their_share_is_used_up(store):
    for number in range(20):
        await arrive(store, f"batch{number}", batch=True, ttft_target_s=60.0)
    for number in range(20):
        await arrive(store, f"fast{number}", ttft_target_s=100.0 + number)
    served = await order_served(store, 40)
    assert {name[:5] for name in served[:20]} == {"batch"}


async def test_whoever_waits_comes_before_those_that_come_later(store):
    await arrive(store, "patient", ttft_target_s=60.0, priority=-5)
    for number in range(100):
        await arrive(store, f"t{number}", ttft_target_s=2.0 + number, priority=5)
    served = await order_served(store, 101)
    assert 60 < served.index("patient") <= 68


def lost(name, late_s=0.05, due_s=0.0, **kwargs):
    return ticket(name, Order(due_s, late_s=late_s), **kwargs)


async def test_a_lost_target_goes_behind_those_that_can_be_held(store):
    await fill(store, running=1)
    await store.enqueue(lost("lost"))
    await store.enqueue(ticket("held", 1.0))
    await store.enqueue(ticket("far", 1000.0))
    await asyncio.sleep(0.1)
    assert await order_served(store, 3) == ["held", "lost", "far"]


async def test_a_lost_target_is_served_where_nothing_else_waits(store):
    await fill(store)
    answer = await store.enqueue(lost("lost", late_s=-1.0))
    assert answer.place is Place.TURN


async def test_a_target_is_lost_once(store):
    await fill(store, running=1)
    await store.enqueue(lost("lost", late_s=-1.0))
    for _ in range(5):
        await store.take_turns(HERE)
        await store.enqueue(lost("lost", late_s=-1.0))
    await store.enqueue(ticket("soon", 29.0))
    await store.enqueue(ticket("far", 32.0))
    assert await order_served(store, 3) == ["soon", "lost", "far"]


async def test_lost_work_is_ahead_of_others_no_more(store):
    await store.enqueue(prompt("lost", 5.0, Order(0.0, late_s=-1.0)))
    answer = await store.enqueue(prompt("held", 1.0, 2.0))
    assert (answer.ahead_s, answer.ahead) == (0.0, 0)
    assert (await store.snapshot()).queued_s == 6.0


async def test_many_lost_targets_are_put_back_some_at_a_time(store):
    await fill(store, running=1)
    for number in range(150):
        await store.enqueue(lost(f"t{number}", late_s=0.8))
    await store.enqueue(ticket("held", 1.0))
    await asyncio.sleep(1.0)
    async with Turns(store) as turns:
        await fill(store)
        for _ in range(3):
            assert turns.came in ([], ["held"])
            await store.take_turns(HERE)
        await turns.until("held")
    await store.check_integrity()


async def place(store, *args, **kwargs):
    return (await store.enqueue(prompt(*args, **kwargs))).place


async def test_short_prompts_get_turns_together_and_long_ones_alone(store):
    await fill(store, sequences=100)
    short = [await place(store, f"s{number}", 0.3, 1.0) for number in range(6)]
    assert short == 4 * [Place.TURN] + 2 * [Place.WAITING]
    await store.leave([TicketId(f"s{number}") for number in range(6)])
    assert await place(store, "long", 8.0) is Place.TURN
    assert await place(store, "next", 8.0, 2.0) is Place.WAITING


async def test_a_ticket_without_prompt_work_does_not_wait_for_workers_that_want_prompts(store):
    await fill(store, sequences=4, load=Load(prompt_backlog_s=50.0))
    assert await place(store, "prompt", 0.1, 5.0) is Place.WAITING
    assert (await store.enqueue(ticket("go on", 1.0))).place is Place.TURN


async def test_turns_of_one_role_leave_the_other_its_room(store):
    await store.heartbeat(worker("p", Role.PREFILL, capacity=Usage(1, 1000)), PERIOD_S)
    await store.heartbeat(worker("d", capacity=Usage(4, 1000)), PERIOD_S)
    for number in range(2):
        answer = await store.enqueue(ticket(f"d{number}", prefill=None))
        assert answer.place is Place.TURN
    assert (await store.enqueue(ticket("both"))).place is Place.TURN
    assert (await store.enqueue(ticket("more", 2.0))).place is Place.WAITING


async def test_the_next_prompt_comes_when_the_worker_is_about_to_run_dry(store):
    await fill(store, sequences=8)
    assert await place(store, "a", 3.0) is Place.TURN
    assert await place(store, "b", 3.0, 2.0) is Place.WAITING
    possible = plan(candidate(worker("p", Role.PREFILL), 3.0), worker("d"))
    async with Turns(store) as turns:
        assert await store.claim(claim("a"), [possible], 10.0, TicketId("a")) is not None
        for backlog_s in (3.0, 2.0, 1.0):
            busy = worker(
                "p",
                Role.PREFILL,
                running=Usage(1, 10),
                taken=frozenset({claim("a")}),
                load=Load(prompt_backlog_s=backlog_s),
            )
            await store.heartbeat(busy, PERIOD_S)
            assert (await store.snapshot()).turns == 0
        last = worker("p", Role.PREFILL, running=Usage(1, 10), load=Load(prompt_backlog_s=0.9))
        await store.heartbeat(last, PERIOD_S)
        await turns.until("b")


async def test_an_unused_turn_gives_its_prompt_work_back(store):
    await fill(store, sequences=8, period_s=0.5)
    assert await place(store, "idle", 5.0, 2.0) is Place.TURN
    assert await place(store, "next", 5.0, 1.0) is Place.WAITING
    async with Turns(store) as turns, asyncio.timeout(10):
        while "next" not in turns.came:
            await fill(store, sequences=8, period_s=0.5)
            await store.take_turns(HERE)
            await asyncio.sleep(0.05)
    snapshot = await store.snapshot()
    assert (snapshot.turns, snapshot.queued_s) == (1, 5.0)


async def test_an_empty_restart_forgets_work_and_clocks(own_redis):
    store = FleetStore(own_redis.url, "f")
    stands = order(ttft_target_s=2.0, tenant="a")
    await store.enqueue(prompt("a", 9.0, stands))
    assert await store.spend_retry(1.0)
    assert not await store.spend_retry(1.0)
    own_redis.restart()
    answer = await store.enqueue(prompt("b", 1.0, stands, RouterId("r")))
    assert answer.ahead_s == 0
    assert 0 < (await store.snapshot()).clocks["a/interactive"] <= 1.0
    assert await store.spend_retry(1.0)
    await store.check_integrity()
    await store.close()
