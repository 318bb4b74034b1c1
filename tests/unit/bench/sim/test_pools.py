"""Simulated pools that grow and shrink: nothing is lost, and every GPU second is paid for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.policy.cost import StepCost
from baton.policy.fleet import Role
from bench.sim.events import Events
from bench.sim.fleet import Fleet, FleetConfig
from bench.sim.loads import Kind, mixed, steady, synthetic
from bench.sim.pools import COLD_SPREAD, LINGER_S, Pools
from bench.sim.records import worker_id
from bench.sim.routers import RouterConfig, Routers
from bench.sim.scaled import ScaledScenario, run
from bench.sim.scalers import Static, Wish
from bench.sim.totals import Counted
from bench.sim.worker import Spec

COST = StepCost(0.02, 2e-4, 1e-9, 1e-3, 1e-7, 0.05)
SPEC = Spec(COST, 8, 40_000, 1024, 0.5, 0.05)
COLD_S = 10.0
ROUGH = RouterConfig(poll_s=0.5, tell_s=0.1, disaggregation="always")


class Bench:
    """A fleet with two workers of each role, under a load for ten seconds."""

    def __init__(self, rate=4.0, output_tokens=300, end_s=10.0):
        self.events = Events()
        config = FleetConfig(2, 2, SPEC, itl_target_s=0.2)
        self.fleet = Fleet(config, self.events)
        self.routers = Routers(self.fleet, ROUGH)
        self.pools = Pools(self.fleet, self.routers, COLD_S)
        self.fleet.dispatcher = self.counted = Counted(self.routers)
        load = mixed([Kind(synthetic(600, output_tokens), steady(rate))], end_s, seed=1)
        self.fleet.start(load.arrivals, load.copies)

    def finish(self):
        until_s = self.events.now + 200
        while self.fleet.unfinished or any(one.unread for one in self.fleet.workers):
            self.events.run(self.events.now + 2 * LINGER_S)
            assert self.events.now < until_s
        assert not self.fleet.unfinished
        for life in self.fleet.lives:
            assert life.refused or life.emitted == life.output_tokens
        for worker in self.fleet.workers:
            left = (worker.running, worker.kv_tokens, worker.expected, worker.unread)
            assert left == (0, 0, 0, 0)


def test_a_worker_serves_after_its_cold_start_and_costs_from_the_start():
    bench = Bench(rate=0.01)
    bench.pools.resize(Role.DECODE, 3)
    counts = bench.pools.counts()[Role.DECODE]
    assert (counts.replicas, counts.ready) == (3, 2)
    bench.events.run(COLD_S * (1 + COLD_SPREAD))
    assert bench.pools.counts()[Role.DECODE].ready == 3
    assert bench.pools.worker_seconds() == pytest.approx(5 * bench.events.now)
    assert len(bench.routers.queue.workers()) == 5


def test_what_decodes_goes_on_elsewhere_while_its_worker_leaves():
    bench = Bench()
    bench.events.run(8.0)
    leaving, staying = bench.pools.serving(Role.DECODE)
    running = list(leaving.batch.values())
    assert running
    bench.pools.resize(Role.DECODE, 1, [worker_id(leaving.number)])
    bench.events.run(8.5)
    assert not leaving.batch
    assert bench.pools.serving(Role.DECODE) == [staying]
    bench.finish()
    assert leaving.ended
    assert all(life.moved == 1 for life in running)
    assert len(bench.routers.queue.workers()) == 3


def test_a_prefill_worker_finishes_its_prompts_before_it_leaves():
    bench = Bench(rate=12.0, output_tokens=5)
    bench.events.run(8.0)
    leaving = bench.pools.serving(Role.PREFILL)[0]
    here = [*leaving.prompts, *leaving.waiting]
    assert here
    bench.pools.resize(Role.PREFILL, 1, [worker_id(leaving.number)])
    bench.finish()
    assert all(life.attempts <= 1 and life.first_s is not None for life in here)


def test_a_worker_that_leaves_costs_until_others_have_read_what_it_had():
    bench = Bench()
    bench.events.run(8.0)
    bench.pools.resize(Role.DECODE, 1)
    bench.finish()
    seconds = bench.pools.worker_seconds() - 3 * bench.events.now
    assert 8.0 + LINGER_S <= seconds < bench.events.now


def test_those_that_start_go_first_and_cost_until_then():
    bench = Bench(rate=0.01)
    bench.pools.resize(Role.PREFILL, 4)
    bench.events.run(3.0)
    bench.pools.resize(Role.PREFILL, 2, [worker_id(0)])
    bench.events.run(30.0)
    assert [worker.number for worker in bench.pools.serving(Role.PREFILL)] == [0, 1]
    assert bench.pools.worker_seconds() == pytest.approx(4 * 30.0 + 2 * 3.0)


def test_the_prefixes_of_a_host_leave_with_it():
    bench = Bench(rate=0.01)
    worker = bench.fleet.of(Role.DECODE)[0]
    worker.cache.add((1, 2))
    bench.pools.resize(Role.DECODE, 1, [worker_id(worker.number)])
    bench.events.run(5.0)
    assert bench.fleet.index.cached((1, 2)) == {}


def test_the_sums_are_those_of_all_requests():
    bench = Bench(rate=20.0, output_tokens=30, end_s=5.0)
    bench.events.run(5.0)
    bench.finish()
    totals, lives = bench.counted.totals, bench.fleet.lives
    ended = [life for life in lives if life.ended_s is not None]
    assert totals.requests == len(lives) > len(ended)
    assert totals.refused == totals.requests - totals.sequences > 0
    assert totals.output_tokens == sum(life.output_tokens for life in ended)
    assert totals.ttft_held == sum(life.holds_ttft() for life in ended)
    assert totals.new_tokens == sum(life.prompt_tokens for life in ended)


class Script:
    """Resizes as it was told: `wishes` one after the other."""

    period_s = 1.0

    def __init__(self, wishes):
        self._wishes = list(wishes)

    def decide(self, seen, busy):
        assert all(0 <= share <= 1 for shares in busy.values() for share in shares)
        assert all(pool.ready <= pool.replicas for pool in seen.pools.values())
        return [self._wishes.pop()] if self._wishes else []


@settings(deadline=None, max_examples=8)
@given(
    st.lists(st.builds(Wish, st.sampled_from(Role), st.integers(1, 4)), max_size=20),
    st.sampled_from([0.0, 1.0, 7.0]),
    st.integers(0, 3),
)
def test_nothing_is_lost_whatever_comes_and_goes(wishes, cold_start_s, seed):
    fleet = FleetConfig(2, 2, SPEC, seed=seed)
    load = mixed([Kind(synthetic(800, 50), steady(3.0))], 20.0, seed)
    scenario = ScaledScenario(fleet, load.arrivals, 20.0, cold_start_s, ROUGH)
    result = run(scenario, Script(wishes))
    assert len(result.lives) == len(load.arrivals)
    for life in result.lives:
        assert life.refused or life.emitted == life.output_tokens


def test_a_fixed_pool_costs_its_workers_times():
    fleet = FleetConfig(2, 3, SPEC)
    load = mixed([Kind(synthetic(800, 20), steady(1.0))], 72.0, 0)
    result = run(ScaledScenario(fleet, load.arrivals, 72.0), Static())
    assert result.gpu_hours == pytest.approx(5 * 0.02)
    assert [result.turns(role) for role in Role] == [0, 0]
    assert result.held > 0.95
