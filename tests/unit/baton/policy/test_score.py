"""The queue's order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.policy.score import (
    BATCH_CLOCK,
    BATCH_SHARE,
    MAX_PRIORITY,
    PRIORITY_STEP_S,
    STARTED_LEAD_S,
    fair_share,
    order,
)

seconds = st.floats(0, 1000)
targets = st.floats(0, 100)
priorities = st.integers(-1000, 1000)
tenants = st.sampled_from(["a", "b", "c", ""])


def test_a_new_request_is_due_at_its_target():
    assert order(ttft_target_s=2.0).due_s == 2.0


@given(targets, seconds, st.floats(0.001, 1000), priorities)
def test_who_waits_longer_is_due_earlier(target_s, waited, more, priority):
    later = order(ttft_target_s=target_s, waited_s=waited, priority=priority)
    earlier = order(ttft_target_s=target_s, waited_s=waited + more, priority=priority)
    assert earlier.due_s < later.due_s


@given(targets, targets)
def test_the_earlier_deadline_comes_first(one, other):
    due = [order(ttft_target_s=target_s).due_s for target_s in (one, other)]
    assert (due[0] < due[1]) == (one < other)


@given(low=priorities, high=priorities, target_s=targets)
def test_nobody_is_overtaken_for_ever(low, high, target_s):
    """Whatever its priority, a request is due before those that come long enough after it."""
    waited = 2 * MAX_PRIORITY * PRIORITY_STEP_S + target_s + 1
    old = order(ttft_target_s=target_s, waited_s=waited, priority=low)
    assert old.due_s < order(ttft_target_s=0, priority=high).due_s


@given(st.integers(-MAX_PRIORITY, MAX_PRIORITY - 1))
def test_a_higher_priority_is_due_earlier_and_late_at_the_same_time(priority):
    low, high = (order(ttft_target_s=2, priority=each) for each in (priority, priority + 1))
    assert high.due_s < low.due_s
    assert high.late_s == low.late_s


@given(st.floats(0, STARTED_LEAD_S - 2 * MAX_PRIORITY * PRIORITY_STEP_S), priorities, tenants)
def test_what_has_begun_goes_first_outside_of_all_shares(waited, priority, tenant):
    begun = order(ttft_target_s=2, started=True, tenant=tenant, batch=True)
    new = order(ttft_target_s=0, waited_s=waited, priority=priority)
    assert begun.due_s < new.due_s
    assert (begun.clock, begun.floor, begun.late_s) == ("", "", None)


def test_a_target_is_lost_when_the_grace_after_it_is_over():
    assert order(ttft_target_s=2, waited_s=1.5, grace_s=5).late_s == 5.5


def test_only_batch_requests_have_a_minimum_share():
    assert order(ttft_target_s=2).floor == ""
    batch = order(ttft_target_s=60, batch=True, workers=4)
    assert batch.floor == BATCH_CLOCK
    assert batch.floor_rate == pytest.approx(1 / (4 * BATCH_SHARE))


def test_classes_of_a_tenant_have_clocks_of_their_own():
    names = {order(ttft_target_s=2, tenant="a", batch=batch).clock for batch in (True, False)}
    assert len(names) == 2
    assert order(ttft_target_s=2).clock == ""


@given(st.integers(1, 50), st.floats(0.01, 1))
def test_a_tenant_at_its_share_never_runs_ahead(workers, share):
    """Its clock advances in a second by the work of a second of its share: one second."""
    rate = order(ttft_target_s=2, tenant="a", share=share, workers=workers).clock_rate
    assert rate * workers * share == pytest.approx(1)


@given(
    st.dictionaries(
        st.sampled_from(["a/interactive", "a/batch", "b/interactive", "batch"]), seconds
    ),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0.1, 10)),
)
def test_the_shares_of_all_busy_tenants_are_the_whole_fleet(active, weights):
    busy = {name.partition("/")[0] for name, ahead_s in active.items() if ahead_s > 0}
    busy = (busy - {BATCH_CLOCK}) | {"c"}
    everyone = {f"{tenant}/interactive": 1.0 for tenant in busy}
    assert sum(fair_share(tenant, everyone, weights) for tenant in busy) == pytest.approx(1)
    assert fair_share("c", active, weights) == fair_share("c", everyone, weights)


def test_alone_a_tenant_has_everything_and_a_weight_counts():
    assert fair_share("a", {}, {}) == 1
    assert fair_share("a", {"b/interactive": 3.0}, {"a": 3.0}) == 0.75
