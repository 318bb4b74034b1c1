"""Two pools and a budget."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from baton.policy.fleet import Role
from services.planner.config import PlannerConfig
from services.planner.decision import Cause
from services.planner.share import Wish, share

CONFIG = PlannerConfig(gpu_budget=8, gpus_per_decode=2)


def wish(current, need, hold=None, floor=1):
    return Wish(current, floor, need, need if hold is None else hold, Cause.FORECAST, "")


def shared(prefill, decode, config=CONFIG):
    counts = share({Role.PREFILL: prefill, Role.DECODE: decode}, config)
    return counts[Role.PREFILL], counts[Role.DECODE]


def test_what_fits_is_given():
    assert shared(wish(2, 4), wish(2, 2)) == (4, 2)


def test_what_does_not_fit_is_shared_by_need():
    assert shared(wish(1, 6), wish(1, 6)) == (2, 3)


def test_a_need_goes_before_what_is_only_held():
    assert shared(wish(6, 2, hold=6), wish(1, 3)) == (2, 3)


def test_a_worker_does_not_move_for_little():
    even = replace(CONFIG, gpus_per_decode=1)
    assert shared(wish(4, 10), wish(4, 11), even) == (4, 4)
    assert shared(wish(4, 10), wish(4, 30), even) == (2, 6)


wishes = st.builds(
    lambda current, floor, need, more: Wish(
        current,
        min(floor, max(current, 1)),
        max(need, floor),
        max(need, floor) + more,
        Cause.FORECAST,
        "",
    ),
    st.integers(0, 8),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(0, 3),
)


@given(wishes, wishes, st.integers(3, 30))
def test_the_budget_holds_and_floors_too(prefill, decode, budget):
    config = replace(CONFIG, gpu_budget=budget)
    got = shared(prefill, decode, config)
    now = prefill.current + 2 * decode.current
    assert got[0] + 2 * got[1] <= max(budget, now)
    for count, one in zip(got, (prefill, decode), strict=True):
        assert min(one.floor, one.current) <= count <= max(one.hold, one.current)
