"""Who is let into the queue."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.policy.admission import (
    MIN_RETRY_S,
    Allowance,
    Outlook,
    allowance,
    default_ttft_s,
    retry_after_s,
)

outlooks = st.builds(
    Outlook,
    prompt_workers=st.integers(0, 50),
    backlog_s=st.floats(0, 100),
    free_sequences=st.integers(0, 200),
    sequences=st.integers(0, 500),
    stay_s=st.floats(0, 30).filter(lambda stay_s: stay_s == 0 or stay_s > 1e-3),
)
backlogs = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 9)), max_size=6)
known = st.builds(
    lambda outlook, each: replace(outlook, backlogs=tuple(sorted(each))), outlooks, backlogs
)
works = st.floats(0, 500)
counts = st.integers(0, 1000)
waits = st.floats(0, 100)


@given(known, works, counts, waits)
def test_the_allowance_is_the_inverse_of_the_prediction(outlook, ahead_s, ahead, wait_s):
    admitted = allowance(outlook, wait_s).admits(ahead_s, ahead)
    start_s = outlook.start_s(ahead_s, ahead)
    if not math.isclose(start_s, wait_s, rel_tol=1e-6, abs_tol=1e-6):
        assert admitted == (start_s <= wait_s)


@given(known, works, works, counts, counts)
def test_more_ahead_never_starts_earlier(outlook, ahead_s, more_s, ahead, more):
    assert outlook.start_s(ahead_s + more_s, ahead + more) >= outlook.start_s(ahead_s, ahead)


@given(known, works, counts, waits)
def test_one_who_is_refused_is_let_in_after_retry_after(outlook, ahead_s, ahead, wait_s):
    """The fleet works off what is ahead as the outlook says; nobody comes before it."""
    if allowance(outlook, wait_s).admits(ahead_s, ahead):
        return
    pause_s = retry_after_s(outlook, ahead_s, ahead, wait_s)
    assert pause_s >= MIN_RETRY_S
    assert allowance(outlook, wait_s + pause_s + 1e-6).admits(ahead_s, ahead)
    if pause_s > MIN_RETRY_S:
        assert not allowance(outlook, wait_s + pause_s / 2).admits(ahead_s, ahead)


def test_an_idle_fleet_starts_at_once():
    idle = Outlook(prompt_workers=4, backlog_s=0, free_sequences=8, sequences=8, stay_s=2)
    assert idle.start_s(0, 0) == 0
    assert allowance(idle, 0).admits(0, 0)


def test_the_longer_of_both_waits_counts():
    prompts = Outlook(prompt_workers=4, backlog_s=8, free_sequences=1, sequences=8, stay_s=2)
    assert prompts.start_s(4, 0) == 3
    places = replace(prompts, free_sequences=0, backlog_s=0)
    assert places.start_s(0, 15) == 4


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 9)), min_size=1), works)
def test_who_comes_next_waits_for_the_workers_that_are_free_first(backlogs, ahead_s):
    """Work ahead goes to the workers with the least, one small piece after the other."""
    workers = [backlog_s for backlog_s, count in backlogs for _ in range(count)]
    outlook = Outlook(len(workers), sum(workers), 9, 9, 1, tuple(sorted(backlogs)))
    start_s = outlook.start_s(ahead_s, 0)
    filled = sum(max(0.0, start_s - backlog_s) for backlog_s in workers)
    assert filled == pytest.approx(ahead_s, abs=1e-6)
    assert start_s >= min(workers) - 1e-9


def test_one_free_worker_is_enough():
    outlook = Outlook(4, 9.0, 9, 9, 1, ((0.0, 1), (3.0, 3)))
    assert outlook.start_s(0, 0) == 0
    assert outlook.start_s(3, 0) == 3
    assert outlook.start_s(4, 0) == 3.25


def test_without_sequences_that_stay_only_work_is_limited():
    outlook = Outlook(prompt_workers=2, backlog_s=1, free_sequences=0, sequences=0, stay_s=0)
    assert allowance(outlook, 2) == Allowance(3, None)
    assert Allowance().admits(1e9, 10**9)


def test_who_can_wait_for_ever_is_let_in_behind_anything():
    outlook = Outlook(prompt_workers=2, backlog_s=1, free_sequences=0, sequences=4, stay_s=2)
    assert allowance(outlook, math.inf) == Allowance()


@pytest.mark.parametrize(("target_s", "idle_s", "expected"), [(2, 0.5, 2), (2, 3, 6), (0, 0, 0)])
def test_a_long_prompt_has_twice_its_own_time_by_default(target_s, idle_s, expected):
    assert default_ttft_s(target_s, idle_s) == expected
