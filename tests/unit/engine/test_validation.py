"""Requests that can never work are refused, and the field is named."""

from dataclasses import replace

import pytest

from engine.errors import RequestError
from engine.types import Limits, Request, SamplingParams
from engine.validation import check_request

LIMITS = Limits(context_tokens=20, vocab_size=50, eos_token_ids=frozenset({1}))
GOOD = Request("r", (1, 2, 3), SamplingParams(max_tokens=5))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"prompt": (49,)},
        {"prompt": tuple(range(15))},
        {"emitted": (1, 2, 3, 4)},
        {"hand_over_after": 1},
        {"choice": 7},
        {"choices": 128, "hand_over_after": 1},
    ],
)
def test_good_requests_pass(change: dict[str, object]) -> None:
    check_request(replace(GOOD, **change), LIMITS)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0},
        {"temperature": 100.0},
        {"temperature": 1e-6},
        {"top_k": 10**9},
        {"top_p": 1e-12},
        {"min_p": 1.0},
        {"seed": 2**64 - 1},
        {"min_tokens": 5},
        {"logprobs": 0},
        {"logprobs": 20},
        {"prompt_logprobs": 0},
        {"prompt_logprobs": 20},
        {"repetition_penalty": 10.0},
        {"repetition_penalty": 1e-6},
        {"presence_penalty": -2.0},
        {"frequency_penalty": 2.0},
        {"logit_bias": ((0, -100.0), (49, 100.0))},
        {"bad_sequences": tuple((token,) for token in range(49))},
        {"bad_sequences": ((1, 2, 3), (3,))},
    ],
)
def test_odd_but_valid_sampling_passes(change: dict[str, object]) -> None:
    check_request(replace(GOOD, sampling=replace(GOOD.sampling, **change)), LIMITS)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("prompt", {"prompt": ()}),
        ("prompt", {"prompt": (1, 50)}),
        ("prompt", {"prompt": (-1,)}),
        ("prompt", {"prompt": tuple(range(16))}),
        ("emitted", {"emitted": (50,)}),
        ("sampling.max_tokens", {"emitted": (1, 2, 3, 4, 5)}),
        ("choice", {"choice": -1}),
        ("hand_over_after", {"hand_over_after": 0}),
        ("choices", {"choices": 0}),
        ("choices", {"choices": 2}),
        ("choices", {"choices": 2, "hand_over_after": 2}),
        ("choices", {"choices": 2, "hand_over_after": 1, "emitted": (5,)}),
    ],
)
def test_bad_requests_are_refused(field: str, change: dict[str, object]) -> None:
    with pytest.raises(RequestError) as refused:
        check_request(replace(GOOD, **change), LIMITS)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", (-0.1, float("nan"), float("inf"))),
        ("top_k", (-1,)),
        ("top_p", (0.0, 1.1, float("nan"))),
        ("min_p", (-0.1, 1.1, float("nan"))),
        ("seed", (-1, 2**64)),
        ("max_tokens", (0, -3)),
        ("min_tokens", (-1, 6)),
        ("stop_token_ids", (frozenset({50}), frozenset({-1}))),
        ("logprobs", (-1, 21)),
        ("prompt_logprobs", (-1, 21)),
        ("repetition_penalty", (0.0, -1.0, 10.5, float("nan"))),
        ("presence_penalty", (-2.5, 2.5, float("nan"))),
        ("frequency_penalty", (-2.5, 2.5, float("inf"))),
        (
            "logit_bias",
            (((50, 1.0),), ((-1, 1.0),), ((5, 101.0),), ((5, float("nan")),), ((5, 1.0), (5, 2.0))),
        ),
        ("bad_sequences", (((),), ((5, 50),), ((-1,),), tuple((token,) for token in range(50)))),
    ],
)
def test_bad_sampling_is_refused(field: str, values: tuple[object, ...]) -> None:
    for value in values:
        request = replace(GOOD, sampling=replace(GOOD.sampling, **{field: value}))
        with pytest.raises(RequestError) as refused:
            check_request(request, LIMITS)
        assert refused.value.field == f"sampling.{field}"
