"""What the router believes of the fleet."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from baton.errors import InternalError, Unavailable
from baton.policy.fleet import Load, Role, Usage
from services.common.fleet.store import FleetSnapshot
from services.router.fleet import AVOID_S, MAX_AVOID_S, FleetView
from services.router.losses import LOST_S
from tests.support.fleet import worker


class FakeStore:
    """Answers with what the test says."""

    def __init__(self, *workers):
        self.available = True
        self.asked = 0
        self.error = None
        self.tell(*workers)

    def tell(self, *workers, settled=True):
        self.answer = FleetSnapshot(workers, 0, 0.0, 0, 0, 0.0, settled, {})

    async def snapshot(self):
        self.asked += 1
        await asyncio.sleep(0)
        if not self.available:
            raise Unavailable("away")
        if self.error is not None:
            raise self.error
        return self.answer


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@asynccontextmanager
async def viewing(store, clock=None, poll_s=60.0, roles=frozenset(Role)):
    view = FleetView(store, poll_s, clock or FakeClock(), roles)
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


@pytest.mark.parametrize("error", [ValueError("a bug"), InternalError("a script failed")])
async def test_no_failure_ends_the_polling_nor_floods_the_log(error, caplog):
    store = FakeStore(worker("a"))
    async with viewing(store, poll_s=0.001) as view:
        store.error = error
        asked = store.asked
        async with asyncio.timeout(2):
            while store.asked < asked + 5:
                await asyncio.sleep(0.001)
        assert view.workers == (worker("a"),)
        store.error = None
        store.tell(worker("b"))
        async with asyncio.timeout(2):
            while view.workers != (worker("b"),):
                await asyncio.sleep(0.001)
    assert len(caplog.records) == 1


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


async def test_it_is_informed_once_it_knows_a_worker_or_that_there_is_none():
    store = FakeStore()
    store.available = False
    async with viewing(store) as view:
        assert not view.informed, "nobody told it anything"
        store.available = True
        store.tell(settled=False)
        await view.refresh()
        assert not view.informed, "whoever is there may not have said so yet"
        store.tell(worker("a"), settled=False)
        await view.refresh()
        assert view.informed
    store.tell(settled=True)
    async with viewing(store) as view:
        assert view.informed


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


async def test_own_claims_count_in_the_roster_too():
    store = FakeStore(worker("a"))
    async with viewing(store) as view:
        view.add_pending(worker("a"), Usage(1, 10), 0.5)
        assert view.roster.get("a").prompt_start_s == 0.5
        view.add_pending(worker("a"), Usage(-1, -10), -0.5)
        assert view.roster.get("a") == worker("a")


async def test_a_worker_that_stays_away_is_lost_and_one_that_restarted_at_once():
    clock = FakeClock()
    store = FakeStore(worker("a"), worker("b"))
    async with viewing(store, clock) as view:
        gone, restarted = view.lost(worker("a")), view.lost(worker("b"))
        assert view.lost(worker("a")) is gone
        store.tell(worker("b", incarnation="two"))
        await view.refresh()
        assert restarted.is_set()
        assert view.lost(worker("b")).is_set()
        assert not gone.is_set()
        clock.now += LOST_S
        await view.refresh()
        assert gone.is_set()


async def test_nobody_is_lost_while_redis_is_away_or_has_not_settled():
    clock = FakeClock()
    store = FakeStore(worker("a"))
    async with viewing(store, clock) as view:
        lost = view.lost(worker("a"))
        store.tell(settled=False)
        for _ in range(3):
            await view.refresh()
            clock.now += LOST_S
        store.tell()
        await view.refresh()
        store.available = False
        clock.now += LOST_S
        await view.refresh()
        store.available = True
        await view.refresh()
        assert not lost.is_set()


async def test_what_is_missing_is_told_in_words():
    prefill, decode = worker("p", Role.PREFILL), worker("d")
    store = FakeStore(prefill, decode)
    async with viewing(store) as view:
        assert view.degraded == ""
        for there, words in (
            ((prefill,), "no decode worker is there: prefill workers serve both"),
            ((decode,), "no prefill worker is there: decode workers serve both"),
            ((worker("d", draining=True), prefill), "no decode worker"),
            ((), "no worker is there"),
        ):
            store.tell(*there)
            await view.refresh()
            assert view.degraded.startswith(words)
    async with viewing(FakeStore(decode), roles={Role.DECODE}) as view:
        assert view.degraded == ""


async def test_before_the_first_snapshot_nothing_is_known_to_be_wrong():
    store = FakeStore()
    store.available = False
    async with viewing(store) as view:
        assert view.degraded == ""
        assert not view.settled


async def test_workers_get_on_with_their_prompts_while_redis_is_away():
    clock = FakeClock()
    store = FakeStore(worker("a", load=Load(prompt_backlog_s=2.0), pending_prompt_s=1.0))
    async with viewing(store, clock) as view:
        store.available = False
        for elapsed, left in ((0.5, 2.5), (1.5, 1.0), (0.4, 0.6), (5.0, 0.0)):
            clock.now += elapsed
            await view.refresh()
            assert view.roster.get("a").prompt_start_s == pytest.approx(left)


async def test_the_mean_step_of_those_who_decode():
    loads = [Load(decode_step_s=seconds) for seconds in (0.0, 0.02, 0.04)]
    workers = [worker(f"d{number}", load=load) for number, load in enumerate(loads)]
    async with viewing(FakeStore(*workers)) as view:
        assert view.decode_step_s == pytest.approx(0.03)
    async with viewing(FakeStore(worker("d"))) as view:
        assert view.decode_step_s == 0.0


async def test_a_large_fleet_is_asked_for_less_often():
    store = FakeStore(*(worker(f"w{number}") for number in range(200)))
    async with viewing(store, poll_s=0.01):
        await asyncio.sleep(0.3)
        assert 2 <= store.asked <= 3
