"""This router's tickets."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from baton.errors import Exhausted, Unavailable
from baton.policy.admission import Allowance
from baton.policy.fleet import Usage
from baton.policy.score import Order
from services.common.fleet.store import (
    Enqueued,
    FleetStore,
    Need,
    Place,
    RouterId,
    Ticket,
    TicketId,
)
from services.router.turns import Room, Terms, Turns
from tests.support.fleet import until, worker

ROOM = Room(None, Need(10))
BOTH = Room(Need(10), Need(10))
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
        turns.add("a", Order(2.0))
        await turns.join("a", ROOM)
        assert await turns.turn("a", 1.0)
        turns.add("b", Order(1.0))
        await turns.join("b", ROOM)
        assert not await turns.turn("b", 0.05)
        await turns.join("a", ROOM)
        assert await turns.turn("b", 1.0)
        assert not await turns.turn("a", 0.05)


async def test_joining_for_other_room_changes_what_is_waited_for(store):
    await store.heartbeat(FREE, 1.0)
    async with listening(store) as turns:
        turns.add("a", Order(2.0))
        await turns.join("a", BOTH)
        assert not await turns.turn("a", 0.05)
        await turns.join("a", ROOM)
        assert await turns.turn("a", 1.0)


async def test_a_ticket_that_left_may_join_again(store):
    async with listening(store) as turns:
        turns.add("a", Order(2.0))
        await turns.join("a", ROOM)
        await turns.leave("a")
        assert not turns.is_queued("a")
        assert (await store.snapshot()).waiting == 0
        await turns.join("a", ROOM)
        assert (await store.snapshot()).waiting == 1


async def test_turns_for_tickets_that_nobody_waits_for_are_given_back(store):
    await store.heartbeat(FULL, 1.0)
    async with listening(store) as turns:
        await store.enqueue(
            Ticket(TicketId("lost"), RouterId("router"), Order(0.0), None, Need(10))
        )
        turns.add("a", Order(2.0))
        await turns.join("a", ROOM)
        await store.heartbeat(FREE, 1.0)
        assert await turns.turn("a", 1.0)


async def test_the_queue_refuses_new_tickets_but_never_those_it_has(store):
    async with listening(store) as turns:
        turns.add("a", Order(2.0), Terms(limit=1))
        turns.add("b", Order(1.0), Terms(limit=1))
        await turns.join("a", ROOM)
        with pytest.raises(Exhausted):
            await turns.join("b", ROOM)
        assert not turns.remove("b")
        await turns.join("a", BOTH)
        assert (await store.snapshot()).waiting == 1


async def test_lost_tickets_are_told_and_keep_their_time(own_redis):
    store = FleetStore(own_redis.url, "f")
    async with listening(store) as turns:
        turns.add("a", Order(1.0))
        turns.add("b", Order(2.0))
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
        turns.add(name, Order(due))
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


class RecordingStore:
    """Says what the test wants to everything that is queued."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def enqueue(self, ticket, limit, allowance, earn):
        self.asked.append((ticket.order, limit, allowance, earn))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


WAITING, REFUSED = (Enqueued(place, 1, 2.0, 3) for place in (Place.WAITING, Place.REFUSED))
LOST = Enqueued(Place.WAITING, 2, 0.0, 0)
ALLOWED = Allowance(4.0, 5)


def turns_with(*answers):
    store, now = RecordingStore(*answers), [10.0]
    return store, now, Turns(store, RouterId("router"), lambda: now[0])


async def test_terms_and_allowance_hold_for_the_first_time_only():
    store, now, turns = turns_with(WAITING, WAITING)
    turns.add("a", Order(2.0, "tenant", 0.5, late_s=7.0), Terms(9, 0.2))
    assert await turns.join("a", ROOM, ALLOWED) == WAITING
    assert await turns.join("a", Room(None, Need(10, 0.7)), ALLOWED) is None
    now[0] += 3.0
    await turns.join("a", BOTH, ALLOWED)
    assert store.asked == [
        (Order(2.0, "tenant", 0.5, late_s=7.0), 9, ALLOWED, 0.2),
        (Order(-1.0, "tenant", 0.5, late_s=4.0), None, None, 0.0),
    ]


async def test_a_refused_ticket_is_not_queued():
    _, _, turns = turns_with(REFUSED)
    turns.add("a", Order(2.0))
    assert await turns.join("a", ROOM, ALLOWED) == REFUSED
    assert not turns.is_queued("a")
    assert not turns.remove("a")


async def test_a_ticket_of_which_redis_did_not_tell_is_queued_again_on_its_terms():
    store, _, turns = turns_with(Unavailable("away"), WAITING)
    turns.add("a", Order(2.0), Terms(9, 0.2))
    with pytest.raises(Unavailable):
        await turns.join("a", ROOM, ALLOWED)
    assert not turns.is_queued("a")
    await turns.join("a", ROOM, ALLOWED)
    assert turns.is_queued("a")
    assert store.asked[1][1:] == (9, ALLOWED, 0.2)
    assert turns.remove("a")


async def test_a_ticket_that_redis_may_have_is_taken_out_of_it():
    _, _, turns = turns_with(Unavailable("away"))
    turns.add("a", Order(2.0))
    with pytest.raises(Unavailable):
        await turns.join("a", ROOM)
    assert turns.remove("a")


async def test_a_new_registration_loses_all_tickets_but_the_one_that_shows_it():
    _, _, turns = turns_with(WAITING, LOST)
    for name in ("a", "b"):
        turns.add(name, Order(2.0))
        await turns.join(name, ROOM)
    assert not turns.is_queued("a")
    assert turns.is_queued("b")


async def test_tickets_that_are_being_queued_when_the_registration_shows_are_not_lost(store):
    async with listening(store) as turns:
        names = [f"t{number}" for number in range(20)]
        for name in names:
            turns.add(name, Order(2.0))
        await asyncio.gather(*(turns.join(name, ROOM) for name in names))
        assert all(turns.is_queued(name) for name in names)
        assert all(turns.remove(name) for name in names)
        await store.leave(names)
