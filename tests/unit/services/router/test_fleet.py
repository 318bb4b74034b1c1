"""What the router believes of the fleet."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from baton.errors import Unavailable
from baton.policy.fleet import Role, Usage
from services.common.fleet.store import FleetSnapshot
from services.router.fleet import AVOID_S, MAX_AVOID_S, FleetView
from tests.support.fleet import worker


class FakeStore:
    """Answers with what the test says."""

    def __init__(self, *workers):
        self.available = True
        self.asked = 0
        self.tell(*workers)

    def tell(self, *workers, settled=True):
        self.answer = FleetSnapshot(workers, 0, 0, 0, 0.0, settled)

    async def snapshot(self):
        self.asked += 1
        await asyncio.sleep(0)
        if not self.available:
            raise Unavailable("away")
        return self.answer


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@asynccontextmanager
async def viewing(store, clock=None, poll_s=60.0):
    view = FleetView(store, poll_s, clock or FakeClock())
    await view.start()
    try:
        yield view
    finally:
        await view.close()


async def test_polls_and_shows_the_last_snapshot():
    store = FakeStore(worker("a"))
    async with viewing(store, poll_s=0.01) as view:
        assert view.workers == (worker("a"),)
        store.tell(worker("b"))
        async with asyncio.timeout(1):
            while view.workers != (worker("b"),):
                await asyncio.sleep(0.005)


async def test_refreshes_at_the_same_time_share_one_snapshot():
    store = FakeStore()
    async with viewing(store) as view:
        before = store.asked
        await asyncio.gather(*(view.refresh() for _ in range(5)))
        assert store.asked == before + 1


async def test_a_cancelled_refresh_does_not_disturb_the_others():
    async with viewing(FakeStore(worker("a"))) as view:
        first = asyncio.create_task(view.refresh())
        second = asyncio.create_task(view.refresh())
        await asyncio.sleep(0)
        first.cancel()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_workers_stay_known_while_redis_is_away():
    store = FakeStore(worker("a"))
    async with viewing(store) as view:
        store.available = False
        await view.refresh()
        assert view.workers == (worker("a"),)
        assert not view.redis_available


async def test_a_missing_worker_is_believed_only_once_redis_has_settled():
    store = FakeStore(worker("a"), worker("b"))
    async with viewing(store) as view:
        store.tell(worker("b", running=Usage(1, 1)), settled=False)
        await view.refresh()
        assert {each.worker_id: each.running.sequences for each in view.workers} == {"a": 0, "b": 1}
        store.tell(worker("b"))
        await view.refresh()
        assert view.workers == (worker("b"),)


async def test_draining_workers_are_shown_but_get_nothing():
    async with viewing(FakeStore(worker("a"), worker("b", draining=True))) as view:
        assert len(view.workers) == 2
        assert view.candidates == (worker("a"),)


async def test_a_failing_worker_is_avoided_for_longer_and_longer_but_never_for_ever():
    clock = FakeClock()
    async with viewing(FakeStore(worker("a")), clock) as view:
        avoided = []
        for _ in range(12):
            view.report_failure("a", "one")
            begin = clock.now
            while not view.candidates:
                clock.now += 0.01
            avoided.append(clock.now - begin)
        assert avoided[0] == pytest.approx(AVOID_S, abs=0.02)
        assert avoided[1] == pytest.approx(2 * AVOID_S, abs=0.02)
        assert all(b > a - 0.001 for a, b in pairwise(avoided))
        assert avoided[-1] == pytest.approx(MAX_AVOID_S, abs=0.02)


async def test_failures_at_the_same_time_count_once():
    clock = FakeClock()
    async with viewing(FakeStore(worker("a")), clock) as view:
        for _ in range(10):
            view.report_failure("a", "one")
        clock.now += AVOID_S
        assert view.candidates


async def test_success_and_a_new_incarnation_end_the_avoidance():
    store = FakeStore(worker("a"))
    async with viewing(store) as view:
        view.report_failure("a", "one")
        view.report_success("a", "one")
        assert view.candidates
        view.report_failure("a", "one")
        assert not view.candidates
        store.tell(worker("a", incarnation="two"))
        await view.refresh()
        assert view.candidates


async def test_own_claims_count_until_the_next_snapshot():
    store = FakeStore(worker("a"))
    async with viewing(store) as view:
        view.add_pending(worker("a"), Usage(1, 10))
        view.add_pending(worker("a", incarnation="old"), Usage(1, 10))
        assert view.workers[0].pending == Usage(1, 10)
        await view.refresh()
        assert view.workers[0].pending == Usage(0, 0)


async def test_a_change_of_the_fleet_wakes_who_waits_for_one():
    store = FakeStore(worker("a"))
    async with viewing(store) as view:
        revision = view.revision
        waiting = asyncio.create_task(view.change(5.0))
        await asyncio.sleep(0)
        store.tell(worker("a", running=Usage(1, 1)))
        await view.refresh()
        assert view.revision == revision
        assert not waiting.done()
        store.tell(worker("a"), worker("b"))
        await view.refresh()
        assert view.revision == revision + 1
        async with asyncio.timeout(1):
            await waiting


async def test_the_models_limits_are_what_both_roles_can_hold():
    store = FakeStore(worker("p", Role.PREFILL, context_tokens=50), worker("d"))
    async with viewing(store) as view:
        assert view.model().context_tokens == 50
        store.tell()
        await view.refresh()
        assert view.model() is None
