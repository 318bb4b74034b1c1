"""Moving means."""

import pytest

from services.router.means import OUTPUT_TOKENS, Means, MovingMean


def test_the_initial_value_is_gone_with_the_first_one_added():
    mean = MovingMean(7.0)
    assert mean.value == 7.0
    for value in (1.0, 2.0, 3.0):
        mean.add(value)
    assert mean.value == pytest.approx(2.0)


def test_old_values_fade():
    mean = MovingMean(0.0)
    for value in [1.0] * 500 + [5.0] * 500:
        mean.add(value)
    assert mean.value == pytest.approx(5.0, abs=0.01)


def test_a_handoff_is_what_is_beyond_a_step_and_a_stay_is_an_outputs_steps():
    means = Means(0.01)
    assert (means.handoff_s, means.stay_s(0.02)) == (0.01, 0.02 * OUTPUT_TOKENS)
    means.observe_handoff(0.05, 0.02)
    means.observe_output(100)
    assert means.handoff_s == pytest.approx(0.03)
    assert means.stay_s(0.02) == pytest.approx(2.0)
    means.observe_handoff(0.01, 0.02)
    assert means.handoff_s == pytest.approx(0.015)
