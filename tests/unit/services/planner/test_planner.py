"""What the planner decides, look by look."""

import math
import random
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.policy.cost import PRIORS, StepCost
from baton.policy.fleet import Role, Usage
from services.common.fleet.demand import DemandTotals
from services.planner.decision import Cause
from services.planner.history import History
from services.planner.observation import Pool
from services.planner.planner import Planner
from tests.support.planning import CONFIG, COST, REQUEST, ROOM, observed, times, workers, world


def changes(decisions, role):
    return [one for decision in decisions for one in decision.changes if one.role is role]


def test_nothing_is_decided_before_the_load_is_known():
    decision = Planner(CONFIG).decide(observed(1000.0))
    assert decision.changes == ()
    assert decision.sizings == ()


def test_a_steady_load_settles_and_stays():
    fleet = world()
    fleet.run(600, 30.0)
    assert fleet.replicas[Role.PREFILL] >= 4
    assert fleet.replicas[Role.DECODE] >= 2
    assert not [one for one in fleet.run(3000, 30.0) if one.changes]


def test_a_random_steady_load_does_not_make_pools_swing():
    draw = random.Random(3)
    fleet = world()

    def rate(_at_s):
        return max(0.0, draw.gauss(30.0, math.sqrt(30.0 / CONFIG.react_s)))

    fleet.run(900, rate)
    assert len([one for one in fleet.run(3600, rate) if one.changes]) <= 4


def test_a_spike_is_met_within_a_few_looks():
    fleet = world(replicas={Role.PREFILL: 2, Role.DECODE: 2})
    fleet.run(600, 5.0)
    spike = fleet.run(20, 60.0)
    grown = changes(spike, Role.PREFILL)
    assert grown
    assert fleet.replicas[Role.PREFILL] >= 7
    assert "requests/s" in grown[0].why


def test_a_shortage_is_met_once():
    fleet = world()
    fleet.starts_s = 120.0
    fleet.run(600, 5.0)
    fleet.run(20, 60.0)
    fleet.run(100, 60.0)
    before = dict(fleet.replicas)
    fleet.run(600, 60.0)
    assert fleet.replicas[Role.PREFILL] <= before[Role.PREFILL] + 1


def test_pools_shrink_late_and_little_by_little():
    fleet = world()
    fleet.run(600, 60.0)
    high = fleet.replicas[Role.PREFILL]
    early = fleet.run(240, 2.0)
    assert not changes(early, Role.PREFILL)
    assert any("were needed within the last 300 s" in note for note in early[-1].held_back)
    down = changes(fleet.run(1800, 2.0), Role.PREFILL)
    assert len(down) > 2
    assert all(one.current - one.wanted <= max(1, 0.2 * one.current) for one in down)
    assert {one.cause for one in down} == {Cause.SURPLUS}
    assert fleet.replicas[Role.PREFILL] < high / 2


def test_the_least_loaded_workers_stop():
    fleet = world(replicas={Role.PREFILL: 2, Role.DECODE: 3})
    fleet.run(400, 1.0)
    known = workers(Role.PREFILL, 2) + [
        replace(one, running=Usage(1, tokens))
        for one, tokens in zip(workers(Role.DECODE, 3), (900, 100, 500), strict=True)
    ]
    decision = Planner(replace(CONFIG, max_decode=2)).decide(
        observed(1000.0, known=known, decode=Pool(3, 3))
    )
    (change,) = decision.changes
    assert change.cause is Cause.BOUNDS
    assert change.victims == ("decode-1",)


def test_kv_in_use_keeps_workers():
    used = Usage(10, round(0.7 * ROOM.kv_tokens))
    fleet = world(replicas={Role.PREFILL: 2, Role.DECODE: 6}, running=used)
    fleet.run(2000, 0.2)
    assert fleet.replicas[Role.DECODE] == 4  # 1.1 times 2.8, rounded up
    assert any("what is in use" in note for note in fleet.decisions[-1].held_back)


def test_streams_in_progress_keep_the_workers_that_hold_their_target():
    """Though nothing comes any more, and there are places and KV room for all on fewer."""
    config = replace(CONFIG, itl_target_s=0.02)  # 40 sequences a worker, which has 64 places
    each = Usage(25, 25_000)
    fleet = world(config, replicas={Role.PREFILL: 2, Role.DECODE: 4}, running=each)
    fleet.run(60, 1.0)
    fleet.run(2000, 0.0)
    assert fleet.replicas[Role.DECODE] == 3  # 1.1 times 2.5, rounded up
    assert any("what is in use fills 3" in note for note in fleet.decisions[-1].held_back)


def test_missed_first_tokens_add_a_prefill_worker_where_prompts_wait():
    fleet = world(replicas={Role.PREFILL: 4, Role.DECODE: 4})
    fleet.run(300, 10.0)
    fleet.each = replace(REQUEST, ttft_held=0.5)
    fleet.queued_s = 8.0
    grown = changes(fleet.run(60, 10.0), Role.PREFILL)
    assert grown[0].cause is Cause.QUEUE
    assert grown[0].wanted == grown[0].current + 1
    assert "first tokens were in time" in grown[0].why


def test_missed_first_tokens_without_a_queue_are_only_told():
    fleet = world(replicas={Role.PREFILL: 4, Role.DECODE: 4})
    fleet.run(300, 10.0)
    fleet.each = replace(REQUEST, ttft_held=0.5)
    decisions = fleet.run(60, 10.0)
    assert not [one for one in changes(decisions, Role.PREFILL) if one.wanted > one.current]
    assert any("would not help" in note for note in decisions[-1].held_back)


def test_a_queue_of_work_that_holds_its_targets_adds_nobody():
    fleet = world(replicas={Role.PREFILL: 4, Role.DECODE: 4})
    fleet.queued_s = 100.0
    assert not changes(fleet.run(240, 10.0), Role.PREFILL)


def test_full_kv_adds_a_decode_worker():
    fleet = world(replicas={Role.PREFILL: 2, Role.DECODE: 4})
    fleet.running = Usage(20, round(0.95 * ROOM.kv_tokens))
    grown = changes(fleet.run(60, 1.0), Role.DECODE)
    assert [one.cause for one in grown] == [Cause.KV_FULL]


def test_who_waits_though_prompts_would_be_begun_gets_a_decode_worker():
    fleet = world(replicas={Role.PREFILL: 2, Role.DECODE: 4})
    fleet.running = Usage(10, round(0.2 * ROOM.kv_tokens))
    fleet.waiting = 1
    grown = changes(fleet.run(60, 1.0), Role.DECODE)
    assert [one.cause for one in grown] == [Cause.QUEUE]
    assert "no decode worker has the KV room" in grown[0].why


def test_slow_streams_add_a_decode_worker_where_places_are_taken():
    fleet = world(replicas={Role.PREFILL: 2, Role.DECODE: 4})
    fleet.each = replace(REQUEST, itl_held=0.5)
    fleet.running = Usage(50, 10_000)
    assert changes(fleet.run(60, 5.0), Role.DECODE)[0].cause is Cause.ITL_MISSED


def test_a_season_is_met_before_it_comes():
    def rate(at_s):
        return 10.0 + 40.0 * (at_s % 1800 >= 900)

    config = replace(
        CONFIG, season_s=1800, bucket_s=100, cold_start_s=60, react_s=10, scale_down_after_s=60
    )
    learned = world(config)
    learned.run(3 * 1800, rate)
    grown = [one for one in changes(learned.run(900, rate), Role.PREFILL) if one.why]
    assert grown[-1].cause is Cause.FORECAST
    assert "foreseen for" in grown[-1].why
    blind = world(replace(config, forecast=False))
    blind.run(1800, rate)
    low = changes(blind.run(900, rate), Role.PREFILL)
    assert not [one for one in low if one.wanted > one.current]


def test_redis_that_came_back_empty_is_no_negative_load():
    fleet = world()
    fleet.run(600, 30.0)
    before = dict(fleet.replicas)
    fleet.totals = DemandTotals()
    decisions = fleet.run(200, 30.0)
    assert fleet.replicas == before
    assert all(sizing.needed >= 0 for one in decisions for sizing in one.sizings)


@pytest.mark.parametrize("jump_s", [-7200.0, 3600.0])
def test_after_a_leap_of_the_clock_nothing_shrinks_at_once(jump_s):
    fleet = world()
    fleet.run(900, 30.0)
    before = dict(fleet.replicas)
    fleet.at_s += jump_s
    fleet.run(250, 0.0)
    assert fleet.replicas == before


def test_a_budget_goes_to_who_lacks_most():
    config = replace(CONFIG, gpu_budget=8)
    fleet = world(config, replicas={Role.PREFILL: 6, Role.DECODE: 2})
    fleet.each = replace(REQUEST, new_tokens=50, new_pairs=1275, output_tokens=800)
    decisions = fleet.run(900, 60.0)
    assert fleet.replicas[Role.DECODE] > fleet.replicas[Role.PREFILL]
    assert sum(fleet.replicas.values()) <= 8
    moved = [one.changes for one in decisions if len(one.changes) == 2]
    assert all(first.wanted < first.current for first, _ in moved)
    assert any("budget of 8 GPUs" in note for note in decisions[-1].held_back)


def test_cold_starts_are_measured_and_kept():
    fleet = world()
    fleet.starts_s = 90.0
    fleet.run(300, 5.0)
    fleet.run(300, 60.0)
    measured = fleet.planner.history.cold_start_s
    assert measured[Role.PREFILL] == pytest.approx(90.0, abs=CONFIG.react_s)
    successor = Planner(CONFIG)
    successor.restore(History.from_bytes(fleet.planner.history.to_bytes()))
    assert successor.history.cold_start_s == measured


observations = st.lists(
    st.tuples(
        st.floats(0.5, 400),
        st.floats(0, 300),
        st.integers(0, 24),
        st.integers(0, 24),
        st.integers(0, 64),
        st.integers(0, ROOM.kv_tokens),
        st.floats(0, 1),
        st.floats(0, 60),
    ),
    min_size=5,
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(observations, st.sampled_from([0, 6, 15]))
def test_whatever_it_sees_bounds_budget_and_kv_hold(seen, budget):
    config = replace(CONFIG, max_prefill=12, max_decode=12, gpu_budget=budget, gpus_per_decode=2)
    planners = Planner(config), Planner(config)
    at_s, totals = 1e6, DemandTotals()
    for gap_s, rate, prefill, decode, sequences, kv_tokens, held, queued_s in seen:
        at_s += gap_s
        each = replace(REQUEST, ttft_held=held, itl_held=held)
        totals += times(each, rate * min(gap_s, 5))
        known = workers(Role.PREFILL, prefill) + workers(
            Role.DECODE, decode, Usage(sequences, kv_tokens)
        )
        pools = {Role.PREFILL: Pool(prefill, prefill), Role.DECODE: Pool(decode, decode)}
        moment = observed(at_s, totals, known, pools[Role.PREFILL], pools[Role.DECODE], 3, queued_s)
        decision, same = (planner.decide(moment) for planner in planners)
        assert decision == same
        counts = {role: pool.replicas for role, pool in pools.items()}
        before = sum(config.gpus(role) * count for role, count in counts.items())
        for change in decision.changes:
            assert change.current == counts[change.role]
            assert change.why
            counts[change.role] = change.wanted
            if change.wanted > change.current:
                assert change.wanted <= config.most(change.role)
            assert change.wanted >= min(config.least(change.role), change.current)
            if change.role is Role.DECODE:
                assert (
                    change.wanted * ROOM.kv_tokens >= min(change.current, decode) * kv_tokens
                    or change.wanted > change.current
                )
        after = sum(config.gpus(role) * count for role, count in counts.items())
        assert budget == 0 or after <= max(budget, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
@pytest.mark.parametrize("name", [field.name for field in fields(StepCost)][:5])
def test_a_pool_that_speaks_nonsense_leaves_the_other_one_its_size(name, value):
    it = world()
    nonsense = replace(COST, **{name: value})
    for _ in range(30):
        it.at_s += 5
        it.totals += times(REQUEST, 5 * 60.0)
        known = workers(Role.PREFILL, 2)
        known += [replace(one, cost=nonsense) for one in workers(Role.DECODE, 2)]
        decision = it.planner.decide(observed(it.at_s, it.totals, known))
    wanted = {change.role: change.wanted for change in decision.changes}
    assert 5 < wanted[Role.PREFILL] < 20
    told = [one for one in decision.held_back if "what decode needs can't be told" in one]
    assert len(told) == (Role.DECODE not in {one.role for one in decision.sizings})


def test_workers_that_all_begin_anew_do_not_make_a_pool_grow():
    it = world()
    for look in range(200):
        it.at_s += 5
        it.totals += times(REQUEST, 5 * 2.0)
        cold = look >= 100
        known = [
            replace(one, cost=PRIORS["cpu"] if cold else COST)
            for one in (*workers(Role.PREFILL, 2), *workers(Role.DECODE, 2))
        ]
        decision = it.planner.decide(observed(it.at_s, it.totals, known))
        assert all(change.wanted <= 2 for change in decision.changes)


def late_pool(seconds, asked, coming):
    """Replicas after each look of a pool whose requests are all late, with `coming(replicas)`
    ready workers."""
    it, replicas = world(), [asked]
    each = replace(REQUEST, ttft_held=0.0)
    for _ in range(0, seconds, 5):
        it.at_s += 5
        it.totals += times(each, 5 * 20.0)
        pool = Pool(replicas[-1], coming(replicas[-1]))
        known = workers(Role.PREFILL, pool.ready, backlog_s=2.0) + workers(Role.DECODE, 2)
        seen = observed(it.at_s, it.totals, known, pool, waiting=50, queued_s=60.0)
        found = changes([it.planner.decide(seen)], Role.PREFILL)
        replicas.append(found[0].wanted if found else replicas[-1])
    return replicas


def test_a_pool_whose_requests_are_late_does_not_shrink_while_a_worker_comes():
    it, found = world(), []
    for second in range(0, 340, 5):
        late = second >= 280
        it.at_s += 5
        it.totals += times(replace(REQUEST, ttft_held=0.0 if late else 1.0), 5 * 4.0)
        pool = Pool(4, 3 if late else 4)  # one began anew
        known = workers(Role.PREFILL, pool.ready, backlog_s=2.0 * late)
        known += workers(Role.DECODE, 2)
        queue = {"waiting": 50, "queued_s": 60.0} if late else {}
        found.append(it.planner.decide(observed(it.at_s, it.totals, known, pool, **queue)))
    assert any("on their way" in note for note in found[-1].held_back)
    assert not changes(found, Role.PREFILL)


def test_one_worker_that_never_comes_does_not_keep_a_pool_small():
    replicas = late_pool(1200, 3, lambda asked: asked - 1)
    assert replicas[-1] > 6


@pytest.mark.parametrize("ready", [0, 1, 3, 8])
def test_workers_that_never_come_do_not_make_a_pool_grow_for_ever(ready):
    replicas = late_pool(7200, ready + 1, lambda asked: min(asked, ready))
    assert max(replicas) <= ready + 1 + max(1, ready // 4) + 1
