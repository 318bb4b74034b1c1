"""A request's parts follow each other and add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.page.parts import Measured, parts_of

SECONDS = st.floats(0, 1e4)


def named(parts):
    return {part.name: pytest.approx(part.seconds) for part in parts}


def test_a_whole_request():
    parts = parts_of(
        Measured(
            total_s=2.0,
            queue_s=0.1,
            prefill_s=0.4,
            first_token=True,
            handoff_s=0.05,
            waiting_s=0.05,
            computing_s=0.3,
            publishing_s=0.02,
        )
    )
    assert named(parts) == {
        "queue": 0.1,
        "wait": 0.05,
        "compute": 0.3,
        "publish": 0.02,
        "calls": 0.03,
        "handoff": 0.05,
        "decode": 1.45,
    }


def test_a_worker_whose_clock_says_more_than_the_leg_is_fitted_in():
    parts = parts_of(
        Measured(total_s=1.0, queue_s=0.0, prefill_s=0.5, first_token=True, handoff_s=None,
                 waiting_s=0.5, computing_s=0.5)
    )  # fmt: skip
    assert named(parts) == {"wait": 0.25, "compute": 0.25, "decode": 0.5}


def test_without_a_workers_word_the_leg_is_one_part():
    parts = parts_of(
        Measured(total_s=1.0, queue_s=0.25, prefill_s=0.5, first_token=True, handoff_s=None)
    )
    assert named(parts) == {"queue": 0.25, "prefill": 0.5, "decode": 0.25}


def test_a_request_that_ended_before_its_first_token_has_no_decode():
    parts = parts_of(
        Measured(total_s=1.0, queue_s=0.25, prefill_s=0.75, first_token=False, handoff_s=None)
    )
    assert named(parts) == {"queue": 0.25, "unfinished": 0.75}


@given(SECONDS, SECONDS, SECONDS, st.booleans(), st.none() | SECONDS, SECONDS, SECONDS, SECONDS)
def test_parts_always_add_up_in_order(
    total, queue, prefill, first, handoff, wait, compute, publish
):
    parts = parts_of(Measured(total, queue, prefill, first, handoff, wait, compute, publish))
    assert sum(part.seconds for part in parts) == pytest.approx(total, abs=1e-6)
    at = 0.0
    for part in parts:
        assert part.seconds > 0
        assert part.start_s == pytest.approx(at, abs=1e-6)
        at = part.start_s + part.seconds
