"""What workers have free, and what a request takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.policy.fleet import GROWTH_TOKENS, Task, Usage
from tests.support.policy import COST, demand, demands, usages, worker


@given(usages, usages)
def test_what_is_taken_and_given_back_is_nothing(one, other):
    assert one + other - other == one
    assert one.fits_in(one + other)


def test_free_is_the_limit_less_what_runs_and_what_is_claimed():
    busy = worker(capacity=Usage(8, 1000), running=Usage(2, 300), pending=Usage(1, 200))
    assert busy.free == Usage(5, 500)
    limited = worker(capacity=Usage(8, 1000), running=Usage(2, 300), sequence_limit=3)
    assert limited.free == Usage(1, 700)


@given(st.none() | st.integers(-3, 20))
def test_a_worker_takes_one_sequence_at_least_and_its_capacity_at_most(limit):
    assert 1 <= worker(capacity=Usage(8, 1000), sequence_limit=limit).sequence_limit <= 8


def test_claimed_prompt_work_counts_as_backlog():
    half = worker(backlog_s=0.6, pending_prompt_s=0.3)
    assert half.prompt_start_s == pytest.approx(0.9)
    assert half.wants_prompts()
    assert not worker(backlog_s=0.6, pending_prompt_s=0.4).wants_prompts()


def test_contexts_of_claimed_sequences_are_like_those_that_run():
    claimed = worker(running=Usage(2, 500), pending=Usage(1, 10), decoding_tokens=400)
    assert claimed.context_tokens == 600


@given(demands)
def test_a_sequence_begins_with_room_to_grow_but_not_beyond_its_life(wanted):
    at_first = wanted.cost(Task.DECODE)
    assert wanted.cost(Task.WHOLE) == at_first
    assert wanted.known_tokens <= at_first.kv_tokens <= wanted.life_tokens
    assert at_first.kv_tokens - wanted.known_tokens <= GROWTH_TOKENS
    assert wanted.cost(Task.PREFILL) == Usage(1, wanted.prompt_tokens + 1)


def test_only_what_is_not_cached_is_computed():
    wanted = demand(prompt=1000, cached={"near": 900, "whole": 5000})
    assert wanted.prompt_s(Task.PREFILL, worker("far")) == COST.prefill_s(1000, 0, 256)
    assert wanted.prompt_s(Task.PREFILL, worker("near")) == COST.prefill_s(100, 900, 256)
    assert wanted.prompt_s(Task.WHOLE, worker("whole")) == COST.prefill_s(1, 999, 256)
    assert wanted.prompt_s(Task.DECODE, worker("far")) == 0


def test_one_that_goes_on_computes_its_output_again():
    wanted = demand(prompt=100, most=500, emitted=50)
    assert wanted.prompt_s(Task.WHOLE, worker()) == COST.prefill_s(150, 0, 256)
