"""What is ahead of a ticket, and who is let in."""

import asyncio

import pytest
import redis

from baton.naming import new_id
from baton.policy.admission import Allowance
from baton.policy.fleet import Role, Usage
from services.common.fleet.store import FleetStore, Place, RouterId, TicketId
from tests.support.fleet import worker
from tests.support.fleet_store import THERE, Turns, claim, plan, prompt, ticket


async def enqueue(store, *args, **kwargs):
    answer = await store.enqueue(prompt(*args, **kwargs))
    return answer.ahead_s, answer.ahead


async def test_what_is_due_earlier_is_ahead(store):
    assert await enqueue(store, "a", 2.0, 10.0) == (0.0, 0)
    assert await enqueue(store, "b", 3.0, 20.0) == (2.0, 1)
    assert await enqueue(store, "c", 4.0, 30.0) == (5.0, 2)
    assert await enqueue(store, "first", 1.0, 5.0) == (0.0, 0)
    assert await enqueue(store, "between", 1.0, 15.0) == (3.0, 2)
    assert (await store.snapshot()).queued_s == 11.0


async def test_all_that_is_due_at_about_the_same_time_is_ahead(store):
    for number in range(5):
        ahead_s, ahead = await enqueue(store, f"t{number}", 1.0, 10.0)
        assert (ahead_s, ahead) == (number, number)


@pytest.mark.parametrize("apart_s", [2.0, 7.0, 100.0, 3000.0, 1e5, 1e7])
async def test_distances_of_any_size_are_summed(store, apart_s):
    for number in range(40):
        ahead_s, _ = await enqueue(store, f"t{number}", 0.5, number * apart_s)
        assert ahead_s == 0.5 * number
    ahead_s, _ = await enqueue(store, "middle", 0.5, 9.3 * apart_s)
    assert ahead_s == 5.0


async def test_a_ticket_is_not_ahead_of_itself(store):
    await enqueue(store, "a", 2.0, 1.0)
    assert await enqueue(store, "b", 2.0, 5.0) == (2.0, 1)
    assert await enqueue(store, "b", 2.0, 5.0) == (2.0, 1)


async def test_another_need_replaces_the_work_that_waits(store):
    await enqueue(store, "a", 2.0, 1.0)
    await enqueue(store, "a", 0.5, 1.0)
    assert await enqueue(store, "b", 2.0, 5.0) == (0.5, 1)


async def test_work_leaves_with_its_ticket(store):
    await enqueue(store, "a", 2.0, 1.0)
    await enqueue(store, "b", 3.0, 5.0)
    await store.leave([TicketId("a")])
    assert await enqueue(store, "c", 1.0, 10.0) == (3.0, 1)
    await store.leave([TicketId("b"), TicketId("c")])
    assert (await store.snapshot()).queued_s == 0


async def test_work_at_its_turn_waits_no_more_until_the_turn_is_given_back(store):
    for name, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
        await store.heartbeat(worker(name, role, capacity=Usage(1, 1000)), 5.0)
    assert (await store.enqueue(prompt("a", 2.0, 10.0))).place is Place.TURN
    assert await enqueue(store, "b", 3.0, 5.0) == (0.0, 0)
    assert (await store.snapshot()).queued_s == 3.0
    async with Turns(store) as turns:
        assert (await store.enqueue(prompt("a", 2.0, 10.0))).place is Place.WAITING
        await turns.until("b")
    assert (await store.snapshot()).queued_s == 2.0
    possible = plan(worker("p", Role.PREFILL), worker("d"))
    assert await store.claim(claim("b"), [possible], 5.0, TicketId("b")) is not None
    assert (await store.snapshot()).queued_s == 2.0


async def test_the_tickets_of_a_silent_router_leave_with_their_work(store):
    """More of them than one script drops, and none at the head of the queue."""
    for number in range(150):
        await store.enqueue(prompt(f"lost{number}", 1.0, 20.0, THERE))
    await enqueue(store, "mine", 2.0, 10.0)
    await store.enqueue(prompt("like a prefix", 4.0, 30.0, RouterId(THERE + "s")))
    async with asyncio.timeout(20):
        while (await store.snapshot()).queued_s != 6.0:
            await store.take_turns(RouterId("here"))
            await store.take_turns(RouterId(THERE + "s"))
            await store.check_integrity()
            await asyncio.sleep(0.05)
    assert (await store.snapshot()).waiting == 2


async def test_no_ticket_is_let_in_behind_more_work_than_is_allowed(store):
    await enqueue(store, "a", 2.0, 1.0)
    answer = await store.enqueue(prompt("b", 1.0, 5.0), None, Allowance(1.9))
    assert (answer.place, answer.ahead_s, answer.ahead) == (Place.REFUSED, 2.0, 1)
    assert (await store.snapshot()).waiting == 1
    sooner = await store.enqueue(prompt("c", 1.0, 0.1), None, Allowance(1.9))
    assert sooner.place is Place.WAITING
    exactly = await store.enqueue(prompt("d", 1.0, 5.0), None, Allowance(3.0))
    assert exactly.place is Place.WAITING


async def test_no_ticket_is_let_in_behind_more_tickets_than_are_allowed(store):
    assert (await store.enqueue(ticket("a"), None, Allowance(requests=-1))).place is Place.REFUSED
    assert (await store.enqueue(ticket("a"), None, Allowance(requests=0))).place is Place.WAITING
    assert (await store.enqueue(ticket("b"), None, Allowance(requests=0))).place is Place.REFUSED
    assert (await store.enqueue(ticket("b"), None, Allowance(requests=1))).place is Place.WAITING


async def test_a_ticket_that_is_in_stays_in(store):
    await enqueue(store, "a", 2.0, 1.0)
    await store.enqueue(prompt("b", 1.0, 5.0))
    again = await store.enqueue(prompt("b", 1.0, 5.0), 1, Allowance(0.0, 0))
    assert (again.place, again.ahead_s) == (Place.WAITING, 2.0)


@pytest.mark.parametrize(("allowance", "admitted"), [(Allowance(10.0), 11), (Allowance(9e9, 6), 7)])
async def test_many_at_once_are_let_in_as_far_as_is_allowed(redis_server, allowance, admitted):
    fleet = new_id("fleet")
    stores = [FleetStore(redis_server.url, fleet, timeout_s=10.0) for _ in range(3)]
    answers = await asyncio.gather(
        *(
            stores[number % 3].enqueue(
                prompt(f"t{number}", 1.0, 1.0, RouterId(f"r{number % 3}")), None, allowance
            )
            for number in range(50)
        )
    )
    assert sum(answer.place is Place.WAITING for answer in answers) == admitted
    assert (await stores[0].snapshot()).queued_s == admitted
    await stores[0].check_integrity()
    for one in stores:
        await one.close()


async def spend(store, times, reserve=3.0):
    return sum([await store.spend_retry(reserve) for _ in range(times)])


async def test_a_fleet_has_its_reserve_of_retries(store):
    assert await spend(store, 10) == 3


async def test_admitted_requests_earn_parts_of_retries_up_to_the_reserve(store):
    await store.enqueue(ticket("too early to count"), earn=1.0)
    assert await spend(store, 4) == 3
    for number in range(10):
        for _ in range(2):
            await store.enqueue(ticket(f"t{number}"), earn=0.2)
    assert await spend(store, 4) == 2, "twice the same ticket earns once"
    await store.enqueue(ticket("refused"), 0, earn=1.0)
    assert await spend(store, 1) == 0
    for number in range(100):
        await store.enqueue(ticket(f"s{number}"), earn=0.5)
    assert await spend(store, 10) == 3


async def test_a_smaller_reserve_holds_at_once(store):
    assert await spend(store, 1, reserve=10.0) == 1
    assert await spend(store, 10, reserve=2.0) == 2


async def test_two_routers_spend_from_one_budget(redis_server):
    fleet = new_id("fleet")
    one, other = FleetStore(redis_server.url, fleet), FleetStore(redis_server.url, fleet)
    assert await spend(one, 2) == 2
    assert await spend(other, 5) == 1
    await one.close()
    await other.close()


async def test_what_a_script_does_does_not_grow_with_the_queue(own_redis):
    store = FleetStore(own_redis.url, "f", timeout_s=10.0)

    async def commands():
        """How many commands a ticket in the middle of the queue costs."""
        with redis.Redis.from_url(own_redis.url) as client:
            client.config_resetstat()
            await store.enqueue(prompt("middle", 1.0, 70.0))
            await store.leave([TicketId("middle")])
            stats = client.info("commandstats")
        return sum(stat["calls"] for stat in stats.values())

    async def grow(begin, end):
        tickets = (prompt(f"t{number}", 1.0, number % 140) for number in range(begin, end))
        await asyncio.gather(*(store.enqueue(one) for one in tickets))

    await grow(0, 140)
    few = await commands()
    await grow(140, 1400)
    assert 10 < few < 100
    assert await commands() < few + 20, "a few more look for what expired"
    await store.close()
