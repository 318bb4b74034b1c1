"""What a planner's metrics tell."""

import pytest

from baton.policy.fleet import Role
from baton.policy.sizing import Traffic
from services.planner import metrics
from services.planner.decision import Cause, Decision, Sizing
from services.planner.observation import Pool
from services.planner.scaler import ScaleDenied
from services.planner.standing import Standing
from tests.support.clock import FakeClock
from tests.support.planner_parts import ToldLeadership, ToldPlanner, change
from tests.support.scrape import read


class Told:
    """A planner that leads and has decided once."""

    def __init__(self, dry_run: bool = False) -> None:
        self.clock = FakeClock()
        self.planner = ToldPlanner()
        self.leadership = ToldLeadership()
        self.standing = standing = Standing(self.clock)
        standing.pools = {Role.PREFILL: Pool(1, 1), Role.DECODE: Pool(2, 1)}
        up = change(2, 4)
        standing.decision = Decision(0.0, (up,), (Sizing(Role.DECODE, 5, "many"),))
        standing.did(up)
        self.source = metrics.PlannerMetrics(
            self.planner, standing, self.leadership, dry_run=dry_run
        ).source()


@pytest.fixture
def it():
    return Told()


async def test_all_that_is_declared_is_told(it):
    it.planner.present = it.planner.foreseen = Traffic(*[3.0] * 6)
    scrape = await read(it.source)
    for metric in metrics.METRICS:
        scrape.value(metric)


async def test_replicas(it):
    scrape = await read(it.source)

    def replicas(role, state):
        return scrape.value(metrics.REPLICAS, role=role, state=state)

    assert [replicas("decode", state) for state in ("current", "ready", "wanted")] == [2, 1, 4]
    assert [replicas("prefill", state) for state in ("current", "ready", "wanted")] == [1, 1, 1]
    assert scrape.value(metrics.NEEDED, role="decode") == 5


async def test_decisions_count_by_what_they_came_of(it):
    it.standing.did(change(4, 3, Role.DECODE, Cause.SURPLUS))
    scrape = await read(it.source)
    assert scrape.value(metrics.DECISIONS) == 2
    assert scrape.value(metrics.DECISIONS, role="decode", direction="up", cause="queue") == 1
    assert scrape.value(metrics.DECISIONS, role="decode", direction="down", cause="surplus") == 1


async def test_a_follower_does_not_tell_what_it_would_want(it):
    it.leadership.left_s = 0.0
    scrape = await read(it.source)
    assert scrape.value(metrics.LEADER) == 0
    assert scrape.value(metrics.REPLICAS, state="wanted") == 0
    assert scrape.value(metrics.REPLICAS, state="current") == 3
    assert scrape.value(metrics.NEEDED) == 0


async def test_failures_and_how_long_they_last(it):
    it.standing.failed(ScaleDenied("no"))
    it.standing.failed(KeyError("bug"))
    it.clock.advance(70.0)
    it.standing.round_ended(sound=False)
    scrape = await read(it.source)
    assert scrape.value(metrics.FAILURES_TOLD, kind="denied") == 1
    assert scrape.value(metrics.FAILURES_TOLD, kind="bug") == 1
    assert scrape.value(metrics.UNSOUND) == 70
    it.standing.round_ended(sound=True)
    assert (await read(it.source)).value(metrics.UNSOUND) == 0


async def test_arrivals_are_told_when_they_are_known(it):
    assert (await read(it.source)).value(metrics.ARRIVALS) == 0
    it.planner.present, it.planner.foreseen = Traffic(*[3.0] * 6), Traffic(*[4.0] * 6)
    scrape = await read(it.source)
    assert scrape.value(metrics.ARRIVALS, which="measured") == 3
    assert scrape.value(metrics.ARRIVALS, which="foreseen") == 4


async def test_a_dry_run_says_so():
    assert (await read(Told(dry_run=True).source)).value(metrics.DRY_RUN) == 1
    assert (await read(Told().source)).value(metrics.DRY_RUN) == 0
