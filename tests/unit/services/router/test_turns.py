"""This router's tickets."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from baton.errors import Exhausted
from baton.policy.fleet import Usage
from services.common.fleet.store import FleetStore, RouterId, Ticket, TicketId
from services.router.turns import Room, Turns
from tests.support.fleet import until, worker

ROOM = Room(None, 10)
FREE = worker("d", capacity=Usage(1, 1000))
FULL = worker("d", capacity=Usage(1, 1000), running=Usage(1, 10))


@pytest.fixture
async def store(redis_server, fleet):
    store = FleetStore(redis_server.url, fleet)
    yield store
    await store.check_integrity()
    await store.close()


@asynccontextmanager
async def listening(store):
    turns = Turns(store, RouterId("router"), time.monotonic, poll_s=0.05)
    await turns.start()
    try:
        yield turns
    finally:
        turns.check_integrity()
        await turns.close()


async def test_a_turn_comes_and_joining_again_gives_it_back(store):
    await store.heartbeat(FREE, 1.0)
    async with listening(store) as turns:
        turns.add("a", 2.0, None)
        await turns.join("a", ROOM)
        assert await turns.turn("a", 1.0)
        turns.add("b", 1.0, None)
        await turns.join("b", ROOM)
        assert not await turns.turn("b", 0.05)
        await turns.join("a", ROOM)
        assert await turns.turn("b", 1.0)
        assert not await turns.turn("a", 0.05)


async def test_joining_for_other_room_changes_what_is_waited_for(store):
    await store.heartbeat(FREE, 1.0)
    async with listening(store) as turns:
        turns.add("a", 2.0, None)
        await turns.join("a", Room(10, 10))
        assert not await turns.turn("a", 0.05)
        await turns.join("a", ROOM)
        assert await turns.turn("a", 1.0)


async def test_a_ticket_that_left_may_join_again(store):
    async with listening(store) as turns:
        turns.add("a", 2.0, None)
        await turns.join("a", ROOM)
        await turns.leave("a")
        assert not turns.is_queued("a")
        assert (await store.snapshot()).waiting == 0
        await turns.join("a", ROOM)
        assert (await store.snapshot()).waiting == 1


async def test_turns_for_tickets_that_nobody_waits_for_are_given_back(store):
    await store.heartbeat(FULL, 1.0)
    async with listening(store) as turns:
        await store.enqueue(Ticket(TicketId("lost"), RouterId("router"), 0.0, None, 10))
        turns.add("a", 2.0, None)
        await turns.join("a", ROOM)
        await store.heartbeat(FREE, 1.0)
        assert await turns.turn("a", 1.0)


async def test_the_queue_refuses_new_tickets_but_never_those_it_has(store):
    async with listening(store) as turns:
        turns.add("a", 2.0, 1)
        turns.add("b", 1.0, 1)
        await turns.join("a", ROOM)
        with pytest.raises(Exhausted):
            await turns.join("b", ROOM)
        assert not turns.remove("b")
        await turns.join("a", Room(10, 10))
        assert (await store.snapshot()).waiting == 1


async def test_lost_tickets_are_told_and_keep_their_time(own_redis):
    store = FleetStore(own_redis.url, "f")
    async with listening(store) as turns:
        turns.add("a", 1.0, None)
        turns.add("b", 2.0, None)
        for name in ("a", "b"):
            await turns.join(name, ROOM)
        own_redis.restart()
        await until(lambda: not turns.is_queued("a") and not turns.is_queued("b"))
        for name in ("b", "a"):
            await turns.join(name, ROOM)
        await store.heartbeat(FREE, 1.0)
        async with asyncio.timeout(5):
            while not await turns.turn("a", 1.0):
                assert not await turns.turn("b", 0.0)
    await store.close()


async def test_who_is_due_first_is_first_whatever_the_order_of_arrival():
    turns = Turns(None, RouterId("router"), lambda: 0.0)
    for name, due in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        turns.add(name, due, None)
    for name in ("a", "b", "c"):
        assert turns.is_first(name)
        waking = [asyncio.create_task(turns.news(other, 5.0)) for other in "bc" if other > name]
        await asyncio.sleep(0)
        turns.check_integrity()
        turns.remove(name)
        if waking:
            async with asyncio.timeout(1):
                await waking[0]
            for task in waking:
                task.cancel()
    assert len(turns) == 0
