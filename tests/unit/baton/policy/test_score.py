"""The queue's order."""

from hypothesis import given
from hypothesis import strategies as st

from baton.policy.score import (
    DEFAULT_TTFT_TARGET_S,
    MAX_PRIORITY,
    PRIORITY_STEP_S,
    STARTED_LEAD_S,
    queue_score,
)

seconds = st.floats(0, 1000)
priorities = st.integers(-1000, 1000)


def test_a_new_request_is_due_at_its_target():
    assert queue_score(0.0) == DEFAULT_TTFT_TARGET_S


@given(waited=seconds, more=st.floats(0.001, 1000), priority=priorities)
def test_who_waits_longer_is_due_earlier(waited, more, priority):
    assert queue_score(waited + more, priority=priority) < queue_score(waited, priority=priority)


@given(low=priorities, high=priorities)
def test_nobody_is_overtaken_for_ever(low, high):
    """Whatever its priority, a request is due before those that come long enough after it."""
    longest = 2 * MAX_PRIORITY * PRIORITY_STEP_S
    assert queue_score(longest + 1, priority=low) < queue_score(0, priority=high)


@given(priority=st.integers(-MAX_PRIORITY, MAX_PRIORITY - 1))
def test_a_higher_priority_is_due_earlier(priority):
    assert queue_score(0, priority=priority + 1) < queue_score(0, priority=priority)


@given(
    waited=st.floats(0, STARTED_LEAD_S - 2 * MAX_PRIORITY * PRIORITY_STEP_S), priority=priorities
)
def test_what_has_begun_goes_before_what_has_not(waited, priority):
    assert queue_score(0, started=True) < queue_score(waited, priority=priority)
