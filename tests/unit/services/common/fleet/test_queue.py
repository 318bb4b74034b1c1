"""The queue: who gets a turn, when, and what becomes of lost ones."""

import asyncio
import time

from baton.policy.fleet import Role, Usage
from services.common.fleet.store import FleetStore, Place, TicketId
from tests.support.fleet import worker
from tests.support.fleet_store import HERE, THERE, Turns, claim, plan, ticket

PERIOD_S = 0.5


async def fill(store, sequences=1, tokens=1000, running=0, running_tokens=0):
    """One prefill and one decode worker."""
    for name, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
        used = Usage(running, running_tokens)
        one = worker(name, role, capacity=Usage(sequences, tokens), running=used)
        await store.heartbeat(one, PERIOD_S)


async def place(store, *args, limit=None, **kwargs):
    return (await store.enqueue(ticket(*args, **kwargs), limit)).place


async def claim_at_turn(store, name):
    possible = plan(worker("d"), cost=Usage(1, 20))
    return await store.claim(claim(name), [possible], 10.0, TicketId(name))


async def test_an_idle_fleet_gives_the_turn_at_once(store):
    await fill(store)
    assert await place(store, "a") is Place.TURN


async def test_the_idle_round_trip_is_short(store):
    await fill(store)
    times = []
    for number in range(100):
        begin = time.perf_counter()
        assert await place(store, f"t{number}") is Place.TURN
        times.append(time.perf_counter() - begin)
        await store.leave([TicketId(f"t{number}")])
    assert min(times) < 0.003  # what a busy machine adds is not ours


async def test_without_a_worker_of_each_role_nobody_has_a_turn(store):
    await store.heartbeat(worker("p", Role.PREFILL), PERIOD_S)
    assert await place(store, "a") is Place.WAITING
    assert await place(store, "b", 2.0, decode=None) is Place.WAITING
    async with Turns(store) as turns:
        await store.heartbeat(worker("d"), PERIOD_S)
        await turns.until("a", "b")


async def test_a_ticket_for_one_role_does_not_need_the_other(store):
    await store.heartbeat(worker("d"), PERIOD_S)
    assert await place(store, "a", prefill=None) is Place.TURN


async def test_turns_come_by_score_as_room_comes(store):
    await fill(store, running=1)
    for name, score in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
        assert await place(store, name, score) is Place.WAITING
    async with Turns(store) as turns:
        await fill(store)
        await turns.until("early")
        assert await claim_at_turn(store, "early") is not None
        await store.release([("d", claim("early"))])
        await turns.until("early", "middle")
        await store.leave([TicketId("middle")])
        await turns.until("early", "middle", "late")


async def test_no_more_turns_than_free_sequences(store):
    await fill(store, sequences=2)
    places = [await place(store, name) for name in ("a", "b", "c")]
    assert places == [Place.TURN, Place.TURN, Place.WAITING]
    snapshot = await store.snapshot()
    assert (snapshot.turns, snapshot.waiting) == (2, 1)


async def test_nobody_overtakes_one_that_needs_more(store):
    await fill(store, sequences=4, tokens=100, running=1, running_tokens=50)
    assert await place(store, "large", 1.0, decode=80) is Place.WAITING
    assert await place(store, "small", 2.0) is Place.WAITING
    async with Turns(store) as turns:
        await store.leave([TicketId("large")])
        await turns.until("small")


async def test_queueing_again_keeps_the_place_and_gives_the_turn_back(store):
    await fill(store)
    assert await place(store, "a", 1.0) is Place.TURN
    assert await place(store, "b", 0.5) is Place.WAITING
    async with Turns(store) as turns:
        assert await place(store, "a", 0.0) is Place.WAITING
        await turns.until("b")
        assert (await store.snapshot()).waiting == 1


async def test_a_claim_needs_the_turn_and_uses_it_up(store):
    await fill(store, sequences=1)
    assert await place(store, "a") is Place.TURN
    assert await place(store, "b") is Place.WAITING
    assert await claim_at_turn(store, "b") is None
    assert await claim_at_turn(store, "a") is not None
    snapshot = await store.snapshot()
    assert (snapshot.turns, snapshot.waiting, snapshot.claims) == (0, 1, 1)


async def test_a_full_queue_lets_nobody_new_in(store):
    assert await place(store, "a", limit=1) is Place.WAITING
    assert await place(store, "b", limit=1) is Place.FULL
    assert await place(store, "a", limit=1) is Place.WAITING
    assert await place(store, "b") is Place.WAITING
    assert (await store.snapshot()).waiting == 2


async def test_each_router_hears_of_its_own_turns(store):
    await fill(store, running=1)
    await place(store, "mine", 1.0)
    await place(store, "theirs", 2.0, router=THERE)
    async with Turns(store) as here, Turns(store, THERE) as there:
        await fill(store, sequences=2)
        await here.until("mine")
        await there.until("theirs")


async def test_a_router_keeps_its_registration_while_it_is_known(store):
    registration = (await store.enqueue(ticket("a"))).registration
    assert (await store.enqueue(ticket("b"))).registration == registration
    assert await store.take_turns(HERE) == registration
    assert await store.take_turns(THERE) != registration


async def test_an_unused_turn_is_given_again(store):
    await fill(store)
    assert await place(store, "a") is Place.TURN
    async with Turns(store) as turns, asyncio.timeout(10):
        while not turns.came:
            await store.take_turns(HERE)
            await fill(store)
            await asyncio.sleep(0.05)
        assert turns.came == ["a"]


async def test_a_dead_router_holds_nobody_up(store):
    await fill(store, running=1)
    await place(store, "dead", 1.0, router=THERE)
    await place(store, "alive", 2.0)
    registration = await store.take_turns(THERE)
    async with Turns(store) as turns, asyncio.timeout(20):
        while (await store.snapshot()).waiting > 1:
            await store.take_turns(HERE)
            await fill(store, running=1)
            await asyncio.sleep(0.05)
        await fill(store)
        await turns.until("alive")
    assert await store.take_turns(THERE) != registration


async def test_a_silent_worker_is_out_of_rotation_and_comes_back(store):
    await store.heartbeat(worker("lost"), 0.2)
    begin = time.monotonic()
    async with asyncio.timeout(10):
        while len((await store.snapshot()).workers) != 0:
            await asyncio.sleep(0.02)
    assert time.monotonic() - begin > 0.55
    assert await place(store, "a", prefill=None) is Place.WAITING
    async with Turns(store) as turns:
        await store.heartbeat(worker("lost"), 0.2)
        await turns.until("a")
    assert len((await store.snapshot()).workers) == 1


async def test_an_old_incarnation_cannot_deregister_the_new_one(store):
    await store.heartbeat(worker("w", incarnation="new"), PERIOD_S)
    await store.deregister("w", "old")
    assert len((await store.snapshot()).workers) == 1
    await store.deregister("w", "new")
    await store.deregister("w", "new")
    assert (await store.snapshot()).workers == ()


async def test_all_keys_have_the_fleets_hash_tag(redis_server):
    store = FleetStore(redis_server.url, "tagged")
    await fill(store)
    await place(store, "a")
    await claim_at_turn(store, "a")
    await place(store, "b")
    await store.heartbeat(worker("e", capacity=Usage(9, 900)), PERIOD_S)
    keys = redis_server.keys("*tagged*")
    assert len(keys) >= 10
    assert all(key.startswith(b"{baton:tagged}:") for key in keys)
    await store.close()
