"""A search may be cancelled at any await: nothing stays queued or claimed."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from baton.naming import RequestId
from baton.policy.fleet import NOTHING, Role, Usage
from services.common.fleet.store import FleetStore, RouterId
from services.router.dispatch import Dispatcher
from services.router.fleet import FleetView
from tests.support.fleet import demand, registered, worker

WORKERS = (
    worker("p", Role.PREFILL, capacity=Usage(1, 1000)),
    worker("d", capacity=Usage(1, 1000)),
)


class PausingStore(FleetStore):
    """Stops before and after each change that the search makes, at the point that is asked for."""

    def __init__(self, url, fleet):
        super().__init__(url, fleet)
        self.pause_at = -1
        self.points = 0
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def _point(self):
        if self.points == self.pause_at:
            self.reached.set()
            await self.go.wait()
        self.points += 1

    async def _between_points(self, change):
        await self._point()
        answer = await change
        await self._point()
        return answer

    async def enqueue(self, *args):
        return await self._between_points(super().enqueue(*args))

    async def claim(self, *args):
        return await self._between_points(super().claim(*args))


@asynccontextmanager
async def pausing(url, fleet):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(registered(url, fleet, *WORKERS))
        store = PausingStore(url, fleet)
        view = FleetView(store, poll_s=0.05)
        dispatcher = Dispatcher(store, view, RouterId("router"))
        await view.start()
        await dispatcher.start()
        for close in (store.close, view.close, dispatcher.close):
            stack.push_async_callback(close)
        yield store, dispatcher


async def assert_idle(store, dispatcher):
    await store.check_integrity()
    dispatcher.check_integrity()
    snapshot = await store.snapshot()
    assert (snapshot.waiting, snapshot.turns, snapshot.claims) == (0, 0, 0)
    assert all(each.pending == NOTHING for each in snapshot.workers)
    assert (dispatcher.waiting, dispatcher.holding) == (0, 0)


async def first_of(*awaitables):
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    try:
        async with asyncio.timeout(5):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks[1:]:
            task.cancel()


@pytest.mark.parametrize("cancels", [1, 2])
async def test_cancelled_before_and_after_each_change(redis_server, fleet, cancels):
    async with pausing(redis_server.url, fleet) as (store, dispatcher):
        for point in range(4):
            store.points, store.pause_at = 0, point
            store.reached.clear()
            store.go.clear()
            task = asyncio.create_task(dispatcher.turn(demand(f"r{point}")))
            await first_of(task, store.reached.wait())
            assert store.reached.is_set(), "a turn on an idle fleet is two changes"
            for _ in range(cancels):
                task.cancel()
                await asyncio.sleep(0)
            store.go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await assert_idle(store, dispatcher)


async def test_cancelled_at_every_tick_of_the_loop(redis_server, fleet):
    async with pausing(redis_server.url, fleet) as (store, dispatcher):
        ticks, finished = 0, 0
        while finished < 3:
            request_id = RequestId(f"r{ticks}")
            task = asyncio.create_task(dispatcher.turn(demand(request_id)))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
                finished += 1
                await dispatcher.release(request_id)
            except asyncio.CancelledError:
                pass
            await assert_idle(store, dispatcher)
            ticks += 1
        assert ticks > 10


async def test_cancelled_while_it_waits_for_room(redis_server, fleet):
    async with pausing(redis_server.url, fleet) as (store, dispatcher):
        await dispatcher.turn(demand("first"))
        for ticks in range(0, 60, 3):
            task = asyncio.create_task(dispatcher.turn(demand(f"r{ticks}")))
            for _ in range(ticks):
                await asyncio.sleep(0)
            if ticks > 40:
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await dispatcher.release("first")
        await assert_idle(store, dispatcher)


async def test_fifty_cancelled_at_once_leave_an_idle_fleet(redis_server, fleet):
    async with pausing(redis_server.url, fleet) as (store, dispatcher):
        tasks = [asyncio.create_task(dispatcher.turn(demand(f"r{n}"))) for n in range(50)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for number, result in enumerate(done):
            if not isinstance(result, BaseException):
                await dispatcher.release(f"r{number}")
        await assert_idle(store, dispatcher)
        async with asyncio.timeout(0.5):
            await dispatcher.turn(demand("next"))
        await dispatcher.release("next")


async def test_a_deadline_ends_the_wait(redis_server, fleet):
    async with pausing(redis_server.url, fleet) as (store, dispatcher):
        await dispatcher.turn(demand("first"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await dispatcher.turn(demand("late"))
        await dispatcher.release("first")
        await assert_idle(store, dispatcher)
