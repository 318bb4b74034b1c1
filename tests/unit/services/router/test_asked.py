"""What a request asks of the scheduler, and where a stream goes on: right, or refused by name."""

import math
from dataclasses import replace

import pytest

from baton.errors import InvalidRequest
from baton.policy.score import Urgency
from services.router.request import ResumeFrom
from services.router.validation import (
    ModelLimits,
    RequestFields,
    SamplingFields,
    TextPrompt,
    check_prompt,
    check_request,
)

LIMITS = ModelLimits(
    name="demo", vocab_size=100, context_tokens=32, default_max_tokens=16, max_characters=1000
)
FIELDS = RequestFields(TextPrompt("hello"))


def check(prompt_tokens=4, **fields):
    checked = check_request(replace(FIELDS, **fields), LIMITS)
    return check_prompt(checked, range(prompt_tokens), LIMITS)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"batch": None}, "request_class", "neither interactive nor batch"),
        ({"ttft_target_s": 0.0}, "ttft_target", "0 s is not above 0"),
        ({"ttft_target_s": -1.0}, "ttft_target", "-1 s is not above 0"),
        ({"ttft_target_s": 3600.5}, "ttft_target", "at most 3600 s"),
        ({"ttft_target_s": math.nan}, "ttft_target", "nan"),
        ({"itl_target_s": 0.0}, "itl_target", "0 s is not above 0"),
        ({"itl_target_s": 1e12}, "itl_target", "at most 3600 s"),
        ({"priority": 11}, "priority", "11 is not between -10 and 10"),
        ({"priority": -11}, "priority", "-11 is not between -10 and 10"),
        ({"tenant": "x" * 65}, "tenant", "65 characters are more than 64"),
        ({"tenant": "a b"}, "tenant", "other than"),
        ({"resume_from": ResumeFrom(1, ())}, "resume_from.emitted", "0 lists of tokens"),
        ({"resume_from": ResumeFrom(1, ((1,), ()))}, "resume_from.emitted", "2 lists of tokens"),
        (
            {"choices": 2, "resume_from": ResumeFrom(1, ((1,), (2, 100)))},
            "resume_from.emitted[1].ids[1]",
            "100 is no token id",
        ),
        (
            {"sampling": SamplingFields(seed=2), "resume_from": ResumeFrom(1, ((1,),))},
            "resume_from.seed",
            "1 is not sampling.seed, which is 2",
        ),
        (
            {"sampling": SamplingFields(max_tokens=3), "resume_from": ResumeFrom(1, ((1,) * 4,))},
            "resume_from.emitted[0]",
            "4 tokens are more than max_tokens, which is 3",
        ),
        (
            {"resume_from": ResumeFrom(1, ((1,) * 17,))},
            "resume_from.emitted[0]",
            "17 tokens are more than max_tokens, which is 16",
        ),
    ],
)
def test_what_can_never_work(fields, field, message):
    with pytest.raises(InvalidRequest) as caught:
        check(**fields)
    assert caught.value.field == field
    assert message in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"ttft_target_s": 1e-9, "itl_target_s": 3600.0},
        {"priority": -10},
        {"priority": 10, "batch": True},
        {"tenant": "aZ09._:-" * 8},
    ],
)
def test_limits_themselves_are_allowed(fields):
    assert check(**fields).urgency == Urgency(**fields)


def test_nothing_asked_is_nobodys_interactive_request():
    generation = check()
    assert generation.urgency == Urgency()
    assert (generation.salt, generation.emitted, generation.resumed) == (b"", (), False)


def test_tenants_have_salts_of_their_own():
    salts = {check(tenant=tenant).salt for tenant in ("", "a", "b")}
    assert len(salts) == 3


@pytest.mark.parametrize("seed", [None, 7])
def test_the_seed_of_a_resumed_stream_is_the_earlier_ones(seed):
    sampling = SamplingFields(seed=seed, max_tokens=2)
    resume = ResumeFrom(7, ((1, 2), ()))
    generation = check(sampling=sampling, choices=2, resume_from=resume)
    assert generation.sampling.seed == 7
    assert generation.emitted == ((1, 2), ())
    assert generation.resumed
    assert not check(resume_from=ResumeFrom(7, ((),))).resumed


def test_checks_come_in_a_fixed_order():
    fields = {
        "bad_words": ("",), "batch": None, "ttft_target_s": 0.0, "itl_target_s": 0.0,
        "priority": 99, "tenant": "?", "resume_from": ResumeFrom(1, ()),
    }  # fmt: skip
    right = {
        "bad_words": (), "batch": False, "ttft_target_s": None, "itl_target_s": None,
        "priority": 0, "tenant": "",
    }  # fmt: skip
    names = [
        "bad_words[0]", "request_class", "ttft_target", "itl_target", "priority", "tenant",
        "resume_from.emitted",
    ]  # fmt: skip
    for name, (key, value) in zip(names, [*right.items(), ("", None)], strict=True):
        with pytest.raises(InvalidRequest) as caught:
            check(**fields)
        assert caught.value.field == name
        fields[key] = value
