"""How many workers a load needs."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.policy.cost import StepCost
from baton.policy.fleet import Role, Usage
from baton.policy.sizing import Profile, Targets, Traffic, decode_need, late, prefill_need
from tests.support import policy

COST = StepCost(0.01, 1e-4, 1e-8, 2e-4, 2e-7, relative_error=0.05)
PROFILE = Profile(COST, 2048, 64, 200_000)
TARGETS = Targets(2.0, 0.05, 0.95)
ONE = Traffic(1, 1000, 500_500, 1, 200, 220_000, 1000)


def test_no_load_needs_nobody():
    assert prefill_need(Traffic(), PROFILE, TARGETS).workers == 0
    assert decode_need(Traffic(), PROFILE, TARGETS).workers == 0


def test_prefill_workers_have_time_for_all_prompts():
    need = prefill_need(ONE * 30, PROFILE, TARGETS)
    assert need.busy == pytest.approx(30 * (0.1 + 0.005 + 0.01 * 1000 / 2048), rel=1e-3)
    assert need.busy < need.workers <= need.busy + 3


def test_a_tighter_target_needs_more_prefill_workers():
    loose = prefill_need(ONE * 30, PROFILE, TARGETS)
    tight = prefill_need(ONE * 30, PROFILE, Targets(0.13, 0.05, 0.99))
    assert tight.workers > loose.workers


def test_decode_batches_hold_the_latency_and_the_places_hold_the_sequences():
    need = decode_need(ONE * 30, PROFILE, TARGETS)
    step_s = COST.decode_step_s(need.batch, need.batch * 1100)
    assert step_s <= 0.9 * TARGETS.itl_s
    assert need.workers * need.batch >= 30 * 200 * step_s
    assert decode_need(ONE * 30, PROFILE, Targets(2.0, 0.02, 0.95)).workers > need.workers


def test_little_kv_room_makes_batches_small():
    need = decode_need(ONE * 30, Profile(COST, 2048, 64, 4 * 1356), TARGETS)
    assert need.batch == 4


def test_prompts_that_are_computed_take_kv_room_too():
    documents = Traffic(1, 40_000, 1_600_000_000, 1, 10, 400_000, 40_000)
    need = decode_need(documents * 2, PROFILE, TARGETS)
    assert need.by_room
    assert need.workers > decode_need(ONE * 2, PROFILE, TARGETS).workers


@given(st.floats(0.01, 200), st.floats(1, 3))
def test_more_load_never_needs_fewer(rate, factor):
    for need in (prefill_need, decode_need):
        less = need(ONE * rate, PROFILE, TARGETS).workers
        assert 1 <= less <= need(ONE * (rate * factor), PROFILE, TARGETS).workers


@pytest.mark.parametrize(("workers", "busy"), [(1, 0.7), (3, 2.5), (8, 7.2)])
def test_the_late_share_is_about_what_a_simulated_queue_has(workers, busy):
    draw = random.Random(1)
    free, at_s, waits = [0.0] * workers, 0.0, []
    for _ in range(40_000):
        at_s += draw.expovariate(busy)
        first = min(range(workers), key=free.__getitem__)
        waits.append(max(0.0, free[first] - at_s))
        free[first] = at_s + waits[-1] + draw.expovariate(1)
    share = sum(wait > 1.5 for wait in waits) / len(waits)
    assert late(workers, busy, 1.0, 1.0, 1.5) == pytest.approx(share, abs=0.08)


def test_a_pool_is_as_fast_as_its_median_measured_worker():
    slow, fast = StepCost(0.1, 1e-3, 0, 1e-3, 0, 0.1), StepCost(0.01, 1e-4, 0, 1e-4, 0, 0.1)
    prior = StepCost(1.0, 1e-2, 0, 1e-2, 0)
    named = {"a": slow, "b": fast, "c": fast, "d": prior}
    known = [policy.worker(name, cost=cost) for name, cost in named.items()]
    found = Profile.of(known, Role.DECODE)
    assert found is not None
    assert found.cost == fast
    assert Profile.of(known, Role.PREFILL) is None
    unsure = Profile.of(known[3:], Role.DECODE)
    assert unsure is not None
    assert unsure.cost == prior


@pytest.mark.parametrize("capacity", [Usage(0, 0), Usage(8, 0), Usage(0, 9000), Usage(-1, -1)])
def test_a_worker_without_room_says_nothing_of_a_pool(capacity):
    empty, whole = policy.worker("a", capacity=capacity), policy.worker("b")
    assert Profile.of([empty], Role.DECODE) is None
    assert Profile.of([empty, whole], Role.DECODE) == Profile.of([whole], Role.DECODE)


@pytest.mark.parametrize("factor", [1e6, 1e12, 1e15, 1e20])
def test_a_load_without_measure_is_counted_at_once(factor):
    need = prefill_need(ONE * factor, PROFILE, TARGETS)
    assert need.busy < need.workers <= 1.01 * need.busy
