"""Malformed sampling parameters are refused with the path of the field at fault."""

import math

import pytest

from baton.errors import InvalidRequest
from baton.v1 import sampling_pb2
from engine.types import Limits
from services.worker.sampling import sampling_params

LIMITS = Limits(context_tokens=64, vocab_size=100, eos_token_ids=frozenset({1}))
GOOD = {"seed": 7, "max_tokens": 8}


def sampling(*, prompt_tokens=10, limits=LIMITS, **values):
    message = sampling_pb2.SamplingParams(**(GOOD | values))
    return sampling_params("sampling", message, prompt_tokens, limits)


def bad(*sequences):
    return [sampling_pb2.TokenSequence(token_ids=sequence) for sequence in sequences]


def test_absent_values_get_their_documented_defaults():
    params = sampling()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert (params.seed, params.max_tokens, params.min_tokens) == (7, 8, 0)
    assert (params.stop_token_ids, params.ignore_eos, params.logprobs) == (frozenset(), False, None)
    assert (params.repetition_penalty, params.presence_penalty) == (1.0, 0.0)
    assert (params.frequency_penalty, params.logit_bias) == (0.0, ())
    assert (params.bad_sequences, params.prompt_logprobs) == ((), None)


def test_given_values_are_taken():
    params = sampling(
        temperature=0.0, top_k=5, top_p=0.5, min_p=0.25, min_tokens=8, stop_token_ids=[3, 4],
        ignore_eos=True, logprobs=0, seed=2**64 - 1, max_tokens=54,
    )  # fmt: skip
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.0, 5, 0.5, 0.25)
    assert (params.seed, params.max_tokens, params.min_tokens) == (2**64 - 1, 54, 8)
    assert (params.stop_token_ids, params.ignore_eos, params.logprobs) == ({3, 4}, True, 0)
    params = sampling(
        repetition_penalty=10.0, presence_penalty=-2.0, frequency_penalty=2.0,
        logit_bias={99: -100.0, 3: 100.0}, bad_sequences=bad([5], [6, 7]), prompt_logprobs=20,
    )  # fmt: skip
    assert (params.repetition_penalty, params.presence_penalty) == (10.0, -2.0)
    assert (params.frequency_penalty, params.prompt_logprobs) == (2.0, 20)
    assert params.logit_bias == ((3, 100.0), (99, -100.0))
    assert params.bad_sequences == ((5,), (6, 7))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("sampling.temperature", {"temperature": math.nan}),
        ("sampling.temperature", {"temperature": math.inf}),
        ("sampling.temperature", {"temperature": -0.1}),
        ("sampling.temperature", {"temperature": 101.0}),
        ("sampling.top_k", {"top_k": 101}),
        ("sampling.top_p", {"top_p": 0.0}),
        ("sampling.top_p", {"top_p": 1.5}),
        ("sampling.top_p", {"top_p": math.nan}),
        ("sampling.min_p", {"min_p": -1.0}),
        ("sampling.min_p", {"min_p": math.nan}),
        ("sampling.max_tokens", {"max_tokens": 0}),
        ("sampling.max_tokens", {"max_tokens": 55}),
        ("sampling.min_tokens", {"min_tokens": 9}),
        ("sampling.stop_token_ids[1]", {"stop_token_ids": [5, 100]}),
        ("sampling.stop_token_ids", {"stop_token_ids": [5] * 65}),
        ("sampling.logprobs", {"logprobs": 21}),
        ("sampling.repetition_penalty", {"repetition_penalty": 0.0}),
        ("sampling.repetition_penalty", {"repetition_penalty": 10.5}),
        ("sampling.repetition_penalty", {"repetition_penalty": math.nan}),
        ("sampling.presence_penalty", {"presence_penalty": -2.5}),
        ("sampling.presence_penalty", {"presence_penalty": math.inf}),
        ("sampling.frequency_penalty", {"frequency_penalty": 2.5}),
        ("sampling.frequency_penalty", {"frequency_penalty": math.nan}),
        ("sampling.logit_bias[100]", {"logit_bias": {5: 1.0, 100: 1.0}}),
        ("sampling.logit_bias[5]", {"logit_bias": {5: 100.5}}),
        ("sampling.logit_bias[5]", {"logit_bias": {5: math.nan}}),
        ("sampling.logit_bias", {"logit_bias": dict.fromkeys(range(301), 1.0)}),
        ("sampling.bad_sequences", {"bad_sequences": bad(*([5] for _ in range(65)))}),
        ("sampling.bad_sequences[1].token_ids", {"bad_sequences": bad([5], [])}),
        ("sampling.bad_sequences[0].token_ids", {"bad_sequences": bad([5] * 65)}),
        ("sampling.bad_sequences[1].token_ids[2]", {"bad_sequences": bad([5], [6, 7, 100])}),
        ("sampling.prompt_logprobs", {"prompt_logprobs": 21}),
    ],
)
def test_bad_sampling_names_its_field(field, values):
    with pytest.raises(InvalidRequest) as caught:
        sampling(**values)
    assert caught.value.field == field


@pytest.mark.parametrize("missing", ["seed", "max_tokens"])
def test_what_the_router_must_set_is_missed(missing):
    message = sampling_pb2.SamplingParams(**GOOD)
    message.ClearField(missing)
    with pytest.raises(InvalidRequest) as caught:
        sampling_params("sampling", message, 10, LIMITS)
    assert caught.value.field == f"sampling.{missing}"


def test_masks_must_leave_a_token_to_draw():
    tiny = Limits(context_tokens=64, vocab_size=4, eos_token_ids=frozenset({0}))
    sequences = bad([1], [1, 2], [3])
    sampling(limits=tiny, bad_sequences=sequences)
    sampling(limits=tiny, bad_sequences=sequences, min_tokens=2, ignore_eos=True)
    for values in ({"min_tokens": 2}, {"bad_sequences": [*sequences, *bad([0])]}):
        with pytest.raises(InvalidRequest) as caught:
            sampling(limits=tiny, **({"bad_sequences": sequences} | values))
        assert caught.value.field == "sampling.bad_sequences"


def test_prompt_logprobs_must_fit_in_a_message():
    wide = Limits(context_tokens=2_000_000, vocab_size=100, eos_token_ids=frozenset())
    assert sampling(prompt_tokens=45_000, limits=wide, prompt_logprobs=20).prompt_logprobs == 20
    assert sampling(prompt_tokens=800_000, limits=wide, prompt_logprobs=0).prompt_logprobs == 0
    for tokens, count in ((46_000, 20), (900_000, 0)):
        with pytest.raises(InvalidRequest) as caught:
            sampling(prompt_tokens=tokens, limits=wide, prompt_logprobs=count)
        assert caught.value.field == "sampling.prompt_logprobs"
