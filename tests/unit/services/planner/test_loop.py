"""The planner's rounds, between what it sees, a planner and an orchestrator that do as told."""

import asyncio
import logging
from dataclasses import replace

import pytest

from baton.policy.fleet import Role, Usage
from baton.policy.sizing import Traffic
from services.common.fleet.demand import DemandTotals
from services.planner.decision import Cause
from services.planner.history import History
from services.planner.loop import PlannerLoop
from services.planner.memory import NAME
from services.planner.observation import Observation, Pool
from services.planner.scaler import ScaleConflict, ScaleDenied, ScaleUnavailable
from services.planner.standing import Standing
from tests.support.clock import FakeClock
from tests.support.planner_parts import ToldLeadership, ToldPlanner, ToldScaler, ToldStore, change
from tests.support.policy import worker

BUCKET = Traffic(*[1.0] * len(Traffic.__dataclass_fields__))
DECODE = tuple(worker(f"decode-{number}") for number in range(2))


class Planning:
    """A loop and all that it stands between."""

    def __init__(self, dry_run: bool = False, **config: float) -> None:
        self.clock = FakeClock()
        self.planner = ToldPlanner(**config)
        self.store = ToldStore()
        self.store.workers = (*DECODE, worker("prefill-0", Role.PREFILL))
        self.scaler = ToldScaler()
        self.leadership = ToldLeadership()
        self.standing = Standing(self.clock)
        self.loop = PlannerLoop(
            *(self.planner, self.store, self.scaler, self.leadership, self.standing),
            dry_run=dry_run,
            clock=self.clock,
        )

    async def rounds(self, count: int = 1, seconds: float = 5.0) -> None:
        for _ in range(count):
            await self.loop.round()
            self.clock.advance(seconds)
            self.store.now += seconds

    @property
    def replicas(self) -> int:
        return self.scaler.now[Role.DECODE].replicas


@pytest.fixture
def it(caplog):
    caplog.set_level(logging.INFO)
    return Planning()


async def test_it_decides_by_what_it_sees(it):
    it.store.totals = DemandTotals(requests=7.0)
    await it.rounds()
    (seen,) = it.planner.seen
    assert seen == Observation(
        at_s=1_000_000.0,
        workers=it.store.workers,
        waiting=4,
        queued_s=2.5,
        totals=DemandTotals(requests=7.0),
        pools={Role.PREFILL: Pool(1, 1), Role.DECODE: Pool(2, 2)},
    )
    assert it.standing.unsound_s == 5.0


async def test_a_decision_is_done_logged_and_told(it, caplog):
    it.planner.changes = (change(2, 3),)
    await it.rounds()
    assert it.replicas == 3
    assert it.scaler.told == [(change(2, 3), False)]
    assert "scales, queue: decode from 2 to 3: 12 s of prompts wait" in caplog.text
    assert "decode needs 3: 9 requests/s need 3" in caplog.text
    assert it.standing.done[Role.DECODE, "up", "queue"] == 1


async def test_fewer_workers_name_those_that_go(it, caplog):
    it.planner.changes = (change(2, 1, cause=Cause.SURPLUS, victims=("decode-1",)),)
    await it.rounds()
    assert it.replicas == 1
    assert "first of all decode-1" in caplog.text


async def test_what_is_held_back_is_logged_now_and_then(it, caplog):
    it.planner.held_back = ("decode stays at 2: cool-down",)
    await it.rounds(20)
    assert caplog.text.count("held back: decode stays at 2: cool-down") == 2


async def test_a_follower_decides_but_does_nothing(it):
    it.leadership.left_s = 0.0
    it.planner.changes = (change(2, 3),)
    it.planner.history = replace(it.planner.history, buckets={1: BUCKET})
    await it.rounds(3)
    assert len(it.planner.seen) == 3
    assert (it.replicas, it.scaler.told, it.store.values) == (2, [], {})


async def test_a_lease_that_ends_meanwhile_ends_what_was_begun(it):
    async def hangs(_change):
        it.leadership.left_s = 0.0
        await asyncio.sleep(3600)

    it.leadership.left_s = 0.05
    it.scaler.apply = hangs
    it.planner.changes = (change(2, 3), change(1, 2, Role.PREFILL))
    await it.rounds()
    assert it.standing.failures["unavailable"] == 1
    assert it.scaler.told == []


async def test_a_dry_run_only_explains_and_does_not_repeat_itself(caplog):
    caplog.set_level(logging.INFO)
    it = Planning(dry_run=True)
    it.planner.changes = (change(2, 3),)
    await it.rounds(5)
    assert (it.replicas, it.scaler.told) == (2, [(change(2, 3), True)])
    assert caplog.text.count("would scale, queue: decode from 2 to 3") == 1
    await it.rounds(120)
    assert len(it.scaler.told) == 2
    it.planner.changes = (change(2, 4),)
    await it.rounds(1)
    assert it.scaler.told[2:] == [(change(2, 4), True)]


async def test_conflicts_are_decided_anew_at_once(it, caplog):
    it.scaler.failing.append(ScaleConflict("decode has 4 replicas now, not 2"))
    it.planner.changes = (change(2, 3),)
    await it.rounds(2)
    assert it.replicas == 3
    assert it.standing.failures["conflict"] == 1
    assert "decode has 4 replicas now, not 2; deciding anew" in caplog.text


async def test_what_is_denied_is_tried_again_slowly_and_logged_once(it, caplog):
    it.scaler.failing.extend([ScaleDenied("cannot scale: 403 no")] * 3)
    it.planner.changes = (change(2, 3),)
    await it.rounds(13)
    assert len(it.scaler.failing) == 1  # at 0 s and 60 s
    assert len(it.planner.seen) == 13
    assert it.standing.unsound_s >= 60
    errors = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert [one.message for one in errors] == [
        "cannot scale: 403 no; trying again every 60 s at most"
    ]
    await it.rounds(24)
    assert it.replicas == 3
    assert "answers again" in caplog.text


async def test_one_change_that_fails_does_not_hold_the_other_up(it):
    it.scaler.failing.append(ScaleConflict("no"))
    it.planner.changes = (change(2, 3), change(1, 2, Role.PREFILL))
    await it.rounds()
    assert it.scaler.now == {Role.PREFILL: Pool(2, 1), Role.DECODE: Pool(2, 2)}


@pytest.mark.parametrize("error", [ScaleDenied("no"), ScaleUnavailable("no"), ScaleConflict("no")])
@pytest.mark.parametrize("refused", [(Role.DECODE, "down"), (Role.PREFILL, "up")])
async def test_what_can_never_be_done_holds_nothing_else_up(it, error, refused):
    it.scaler.refusing[refused] = error
    decode, prefill = change(2, 1, victims=("decode-1",)), change(1, 2, Role.PREFILL)
    it.planner.changes = (decode, prefill)
    await it.rounds(3)
    expected = {Role.DECODE: 1, Role.PREFILL: 2} | {
        role: {Role.DECODE: 2, Role.PREFILL: 1}[role] for role, _ in [refused]
    }
    assert {role: pool.replicas for role, pool in it.scaler.now.items()} == expected
    it.planner.changes = (change(it.replicas, 4),)  # nor the other way of the same pool
    await it.rounds()
    assert it.replicas == 4
    assert it.standing.unsound_s == 5.0


@pytest.mark.parametrize("error", [ScaleDenied("no"), ScaleUnavailable("no"), ScaleConflict("no")])
async def test_a_pool_does_not_grow_into_gpus_that_the_other_has_still(caplog, error):
    caplog.set_level(logging.INFO)
    it = Planning(gpu_budget=3)
    it.scaler.refusing[Role.DECODE, "down"] = error
    it.planner.changes = (change(2, 1, victims=("decode-1",)), change(1, 2, Role.PREFILL))
    await it.rounds(3)
    assert it.scaler.now == {Role.PREFILL: Pool(1, 1), Role.DECODE: Pool(2, 2)}
    assert "prefill stays at 1: no GPUs are free yet" in caplog.text
    it.scaler.refusing.clear()
    await it.rounds(13)
    assert {role: pool.replicas for role, pool in it.scaler.now.items()} == {
        Role.PREFILL: 2,
        Role.DECODE: 1,
    }


async def test_an_orchestrator_that_is_away_is_asked_less_and_less(it, caplog):
    it.scaler.blind.extend([ScaleUnavailable("no answer")] * 4)
    await it.rounds(7)  # at 0, 5, 15 and 35 s
    assert len(it.scaler.blind) == 1
    await it.rounds(1)
    assert (len(it.scaler.blind), it.planner.seen) == (0, [])
    assert caplog.text.count("no answer") == 1
    await it.rounds(8)
    assert len(it.planner.seen) == 1
    assert it.standing.failures["unavailable"] == 4


async def test_without_redis_all_stays_as_it_is(it, caplog):
    it.store.away = True
    it.planner.changes = (change(2, 1),)
    await it.rounds(3)
    assert (it.replicas, it.planner.seen) == (2, [])
    assert caplog.text.count("the pools stay as they are: Redis is away") == 1
    it.store.away, it.store.settled = False, False
    await it.rounds(2)
    assert caplog.text.count("until all workers had the time to register") == 1
    assert (it.replicas, it.planner.seen) == (2, [])
    it.store.settled = True
    await it.rounds()
    assert it.replicas == 1


async def test_a_pool_does_not_shrink_while_its_workers_are_not_seen(it, caplog):
    it.store.workers = DECODE[:1]
    it.planner.changes = (change(2, 1),)
    await it.rounds()
    assert it.replicas == 2
    assert "decode stays at 2: 2 workers serve, 1 are registered" in caplog.text
    it.planner.changes = (change(2, 4),)
    await it.rounds()
    assert it.replicas == 4


async def test_a_worker_that_drains_does_not_stand_for_one_that_is_not_seen(it):
    it.store.workers = (DECODE[0], replace(DECODE[1], draining=True))
    it.planner.changes = (change(2, 1),)
    await it.rounds()
    assert it.replicas == 2


async def test_a_pool_does_not_shrink_where_a_busy_worker_would_go_first(it, caplog):
    idle = (*DECODE, worker("decode-2"))
    busy = (*DECODE, worker("decode-2", running=Usage(1, 100)))
    it.scaler.now[Role.DECODE] = Pool(3, 2)
    it.planner.changes = (change(3, 2),)
    it.store.workers = busy
    await it.rounds()
    assert it.replicas == 3
    assert "decode stays at 3: 2 of 3 workers are ready, and one that is not may be" in caplog.text
    it.store.workers = idle
    await it.rounds()
    assert it.replicas == 2


async def test_a_bug_ends_no_loop(it, caplog):
    it.planner.fails = True
    await it.rounds(2)
    it.planner.fails = False
    await it.rounds()
    assert it.standing.failures["bug"] == 2
    assert len(it.planner.seen) == 1
    assert "a round failed" in caplog.text


async def test_the_history_is_kept_when_it_has_changed(it):
    await it.rounds()
    it.planner.history = history = History(300.0, {7: BUCKET})
    await it.rounds(3)
    assert History.from_bytes(it.store.values[NAME]) == history
    assert it.store.writes == 2


async def test_the_next_planner_goes_on_from_it(it):
    it.store.values[NAME] = History(300.0, {7: BUCKET}).to_bytes()
    await it.rounds(3)
    assert it.planner.history == History(300.0, {7: BUCKET})
    assert it.store.writes == 0


async def test_nothing_is_written_before_what_is_there_was_read(it):
    rich = it.store.values[NAME] = History(300.0, {7: BUCKET}).to_bytes()
    it.store.unreadable = True
    await it.rounds(2)
    assert (it.store.values[NAME], len(it.planner.seen)) == (rich, 2)
    it.store.unreadable = False
    await it.rounds()
    assert it.planner.history == History(300.0, {7: BUCKET})


async def test_a_history_that_can_not_be_read_is_replaced(it, caplog):
    it.store.values[NAME] = b"nonsense"
    await it.rounds()
    assert "beginning anew" in caplog.text
    assert History.from_bytes(it.store.values[NAME]) == it.planner.history


async def test_it_runs_until_it_is_stopped(it):
    it.planner.config = replace(it.planner.config, react_s=0.01)
    stop = asyncio.Event()
    running = asyncio.create_task(it.loop.run(stop))
    async with asyncio.timeout(10):
        while len(it.planner.seen) < 3:
            await asyncio.sleep(0.01)
        stop.set()
        await running
    assert NAME in it.store.values


async def test_a_planner_without_rounds_is_in_trouble(it):
    assert it.loop.trouble() == ""
    it.clock.advance(126.0)
    assert it.loop.trouble() == "no round has ended for 121 s"
    await it.rounds()
    assert it.loop.trouble() == ""
