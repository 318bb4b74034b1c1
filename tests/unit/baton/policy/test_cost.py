"""What steps take."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.policy.cost import PRIORS, StepCost, pairs
from tests.support.policy import COST, costs

tokens = st.integers(0, 5000)


@given(tokens, tokens)
def test_pairs_are_counted_one_by_one(new, before):
    assert pairs(new, before) == sum(before + 1 + index for index in range(new))


@settings(deadline=None)
@given(st.integers(1, 3000), tokens, st.integers(16, 1000))
def test_a_prompt_in_chunks_costs_what_its_steps_cost(new, before, step_tokens):
    total, done = 0.0, 0
    while done < new:
        count = min(step_tokens, new - done)
        total += COST.step_s(prompt_tokens=count, prompt_pairs=pairs(count, before + done))
        done += count
    assert COST.prefill_s(new, before, step_tokens) == pytest.approx(total)


def test_nothing_to_compute_takes_nothing():
    assert COST.prefill_s(0, 500, 256) == 0.0


@given(costs, st.floats(0.001, 1), st.floats(0, 5000), st.integers(1, 300))
def test_sequences_within_is_the_most_that_hold_the_target(cost, target_s, context, most):
    count = cost.sequences_within(target_s, context, most)
    assert 1 <= count <= most
    if count > 1:
        assert cost.decode_step_s(count, count * context) <= target_s * (1 + 1e-6)
    if count < most:
        more = count + 1
        assert cost.decode_step_s(more, more * context) > target_s * (1 - 1e-6)


def test_sequences_that_cost_nothing_are_limited_by_the_base_alone():
    free = StepCost(0.01, 0, 0, 0, 0)
    assert free.sequences_within(0.01, 1000, 7) == 7
    assert free.sequences_within(0.009, 1000, 7) == 1


def test_a_prior_says_that_it_was_not_measured():
    assert all(prior.relative_error == 1.0 for prior in PRIORS.values())
