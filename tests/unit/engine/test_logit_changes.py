"""Bias, penalties and masks against the plain reference, one row at a time."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.logit_changes import changes_of
from engine.masks import masked_tokens
from engine.sampler import SampleRow, sample
from engine.types import Request, SamplingParams
from tests.support.sampling import changed_logits, draws, masked, params_of

VOCAB = 40
# Steps of 1/8, changed by sums of powers of two: every comparison of logits is exact.
some_logits = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=VOCAB, max_size=VOCAB)
some_tokens = st.lists(st.integers(0, 11), max_size=12).map(tuple)
some_params = params_of(VOCAB, max_tokens=20)


def request_of(params: SamplingParams, prompt: tuple[int, ...], output: tuple[int, ...]) -> Request:
    return Request("r", prompt, params, emitted=output)


@settings(max_examples=300, deadline=None)
@given(some_logits, some_params, some_tokens, some_tokens, st.integers(0, 3))
def test_all_options_combined_draw_what_the_reference_draws(
    logits, params, prompt, output, choice
) -> None:
    end_ids = params.stop_token_ids
    changes = changes_of(request_of(params, prompt, output), "cpu")
    gone = masked_tokens(params, len(output), [*prompt, *output], end_ids)
    assert gone == masked(params, output, end_ids, VOCAB)
    row = SampleRow(params, choice, len(output), gone, changes)
    matrix = torch.tensor([logits])
    ((token,),) = sample(matrix, [row])
    assert draws(
        token.token_id, logits, params, choice,
        prompt=prompt, output=output, end_ids=end_ids, slack=0,
    )  # fmt: skip
    assert matrix.tolist() == [logits], "the model's own logits stay as they are"
    if params.logprobs is not None:
        logprobs = torch.log_softmax(matrix[0], dim=-1)
        assert token.logprob == float(logprobs[token.token_id])


@settings(max_examples=200, deadline=None)
@given(some_logits, some_params, some_tokens, some_tokens)
def test_counts_that_grow_are_those_that_are_rebuilt(logits, params, prompt, output) -> None:
    grown = changes_of(request_of(params, prompt, ()), "cpu")
    for length in range(len(output) + 1):
        rebuilt = changes_of(request_of(params, prompt, output[:length]), "cpu")
        assert (grown is None) == (rebuilt is None)
        if grown is not None and rebuilt is not None:
            changed = grown.apply(torch.tensor(logits)).tolist()
            assert changed == rebuilt.apply(torch.tensor(logits)).tolist()
            assert changed == changed_logits(logits, params, prompt, output[:length])
            if length < len(output):
                grown.add(output[length])


def test_plain_requests_pay_nothing() -> None:
    for params in (SamplingParams(), SamplingParams(temperature=0, top_k=3, top_p=0.5, min_p=0.1)):
        assert changes_of(Request("r", (1, 2), params), "cpu") is None


def test_a_penalty_of_prompts_does_not_touch_what_is_in_the_prompt_alone() -> None:
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5)
    changes = changes_of(Request("r", (0, 1), params, emitted=(1, 2, 2)), "cpu")
    assert changes is not None
    assert changes.apply(torch.zeros(4)).tolist() == [0.0, -1.5, -2.0, 0.0]


def test_a_repetition_penalty_counts_the_prompt_and_pushes_both_signs_down() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    changes = changes_of(Request("r", (0, 1), params, emitted=(2,)), "cpu")
    assert changes is not None
    assert changes.apply(torch.tensor([4.0, -4.0, 1.0, 1.0])).tolist() == [2.0, -8.0, 0.5, 1.0]


def test_bias_comes_before_the_penalties() -> None:
    params = SamplingParams(repetition_penalty=2.0, logit_bias=((0, -6.0), (1, 6.0)))
    changes = changes_of(Request("r", (0, 1), params), "cpu")
    assert changes is not None
    assert changes.apply(torch.tensor([4.0, -4.0])).tolist() == [-4.0, 1.0]


def test_a_bad_sequence_begins_in_the_output() -> None:
    params = SamplingParams(bad_sequences=((7,), (1, 2, 3)))
    for output, gone in (((), {7}), ((2,), {7}), ((1, 2), {7, 3}), ((1, 2, 2), {7})):
        tokens = [1, *output]
        assert masked_tokens(params, len(output), tokens, frozenset({9})) == gone
    waiting = replace(params, min_tokens=3)
    assert masked_tokens(waiting, 2, [5, 1, 2], frozenset({9})) == {3, 7, 9}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tiny_repetition_penalty_draws_the_most_probable_of_the_repeated(temperature) -> None:
    """Not NaN, though the quotients are more than a float32 holds."""
    params = SamplingParams(temperature=temperature, repetition_penalty=1e-40)
    changes = changes_of(request_of(params, (3,), ()), "cpu")
    ((token,),) = sample(torch.arange(10.0)[None], [SampleRow(params, 0, 0, changes=changes)])
    assert token.token_id == 3
