import math
from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from baton.errors import InvalidRequest, NotFound
from services.router.request import MessageFields
from services.router.validation import (
    ChatPrompt,
    ModelLimits,
    RequestFields,
    SamplingFields,
    TextPrompt,
    TokenPrompt,
    check_prompt,
    check_request,
)

LIMITS = ModelLimits(
    name="demo", vocab_size=100, context_tokens=32, default_max_tokens=16, max_characters=1000
)
FIELDS = RequestFields(TextPrompt("hello"))
NAN, INF = math.nan, math.inf


def chat(*messages: tuple[str, str]) -> ChatPrompt:
    return ChatPrompt(tuple(MessageFields(*message) for message in messages))


def refused(fields: RequestFields) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_request(fields, LIMITS)
    return caught.value


def with_sampling(**values) -> RequestFields:
    return replace(FIELDS, sampling=SamplingFields(**values))


def fit(count: int, **sampling):
    return check_prompt(check_request(with_sampling(**sampling), LIMITS), range(count), LIMITS)


@pytest.mark.parametrize(
    ("sampling", "field", "message"),
    [
        ({"temperature": -0.1}, "temperature", "-0.1 is not between 0 and 100"),
        ({"temperature": 100.5}, "temperature", "100.5 is not between 0 and 100"),
        ({"temperature": NAN}, "temperature", "nan is not a finite number"),
        ({"temperature": INF}, "temperature", "inf is not a finite number"),
        ({"top_k": -1}, "top_k", "-1 is not between 0 and 100"),
        ({"top_k": 101}, "top_k", "101 is not between 0 and 100"),
        ({"top_p": 0.0}, "top_p", "must be above 0"),
        ({"top_p": -0.0}, "top_p", "must be above 0"),
        ({"top_p": 1.01}, "top_p", "1.01 is not between"),
        ({"top_p": NAN}, "top_p", "finite"),
        ({"min_p": -0.1}, "min_p", "-0.1 is not between 0 and 1"),
        ({"min_p": 1.1}, "min_p", "1.1 is not between 0 and 1"),
        ({"min_p": -INF}, "min_p", "finite"),
        ({"seed": -1}, "seed", "-1 is not between"),
        ({"seed": 1 << 64}, "seed", "is not between"),
        ({"max_tokens": 0}, "max_tokens", "0 is less than 1"),
        ({"max_tokens": -3}, "max_tokens", "-3 is less than 1"),
        ({"min_tokens": -1}, "min_tokens", "-1 is not at least 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "5 is more than max_tokens, which is 4"),
        ({"stop_token_ids": (1,) * 65}, "stop_token_ids", "65 ids are more than 64"),
        ({"stop_token_ids": (1, 100)}, "stop_token_ids[1]", "100 is no token id"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids[0]", "-1 is no token id"),
        ({"logprobs": 21}, "logprobs", "21 is not between 0 and 20"),
        ({"logprobs": -1}, "logprobs", "-1 is not between 0 and 20"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "must be above 0"),
        ({"repetition_penalty": -0.5}, "repetition_penalty", "-0.5 is not between 0 and 10"),
        ({"repetition_penalty": 10.5}, "repetition_penalty", "10.5 is not between 0 and 10"),
        ({"repetition_penalty": NAN}, "repetition_penalty", "nan is not a finite number"),
        ({"presence_penalty": -2.5}, "presence_penalty", "-2.5 is not between -2 and 2"),
        ({"presence_penalty": NAN}, "presence_penalty", "nan is not a finite number"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "2.5 is not between -2 and 2"),
        ({"frequency_penalty": INF}, "frequency_penalty", "inf is not a finite number"),
        ({"logit_bias": ((1, 0.0),) * 301}, "logit_bias", "301 biases are more than 300"),
        ({"logit_bias": ((1, 0.0), (100, 0.0))}, "logit_bias[100]", "100 is no token id"),
        ({"logit_bias": ((-1, 0.0),)}, "logit_bias[-1]", "-1 is no token id"),
        ({"logit_bias": ((7, 100.5),)}, "logit_bias[7]", "100.5 is not between -100 and 100"),
        ({"logit_bias": ((7, NAN),)}, "logit_bias[7]", "nan is not a finite number"),
        ({"logit_bias": ((7, -INF),)}, "logit_bias[7]", "-inf is not a finite number"),
        ({"bad_sequences": ((1,),) * 65}, "bad_sequences", "65 sequences are more than 64"),
        ({"bad_sequences": ((1,), ())}, "bad_sequences[1]", "has 0 tokens, not 1 to 64"),
        ({"bad_sequences": ((1,) * 65,)}, "bad_sequences[0]", "has 65 tokens, not 1 to 64"),
        ({"bad_sequences": ((1, 100),)}, "bad_sequences[0].token_ids[1]", "100 is no token id"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "21 is not between 0 and 20"),
    ],
)
def test_sampling_out_of_its_limits(sampling, field, message):
    error = refused(with_sampling(**sampling))
    assert error.field == f"sampling.{field}"
    assert message in error.message


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 100.0},
        {"top_k": 0},
        {"top_k": 1},
        {"top_k": 100},
        {"top_p": 1.0},
        {"top_p": 1e-9},
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"seed": 0},
        {"seed": (1 << 64) - 1},
        {"min_tokens": 0},
        {"stop_token_ids": (0, 99)},
        {"stop_token_ids": (5,) * 64},
        {"ignore_eos": True},
        {"logprobs": 0},
        {"logprobs": 20},
        {"repetition_penalty": 1e-9},
        {"repetition_penalty": 10.0},
        {"presence_penalty": -2.0},
        {"presence_penalty": 2.0},
        {"frequency_penalty": -2.0},
        {"frequency_penalty": 2.0},
        {"logit_bias": tuple((index, -100.0) for index in range(100))},
        {"logit_bias": ((99, 100.0),)},
        {"bad_sequences": tuple((index,) for index in range(64))},
        {"bad_sequences": ((99,) * 64,)},
        {"prompt_logprobs": 0},
        {"prompt_logprobs": 20},
    ],
)
def test_the_limits_themselves_are_allowed(sampling):
    accepted = check_request(with_sampling(**sampling), LIMITS).sampling
    for name, value in sampling.items():
        assert getattr(accepted, name) == value


def test_defaults():
    checked = check_request(FIELDS, LIMITS)
    sampling = checked.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (1, 0, 1, 0)
    assert (sampling.min_tokens, sampling.stop_token_ids, sampling.logprobs) == (0, (), None)
    assert not sampling.ignore_eos
    assert sampling.repetition_penalty == 1
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0, 0)
    assert (sampling.logit_bias, sampling.bad_sequences, sampling.prompt_logprobs) == ((), (), None)
    assert (checked.choices, checked.echo, checked.bad_words) == (1, False, ())
    assert checked.request_id.startswith("req-")


def test_request_ids_and_seeds_are_drawn_anew():
    drawn = [check_request(FIELDS, LIMITS) for _ in range(20)]
    assert len({one.request_id for one in drawn}) == 20
    assert len({one.sampling.seed for one in drawn}) == 20
    assert all(0 <= one.sampling.seed < 1 << 64 for one in drawn)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"request_id": "x" * 129}, "request_id", "129 characters are more than 128"),
        ({"request_id": "a b"}, "request_id", "other than"),
        ({"request_id": "a\n"}, "request_id", "other than"),
        ({"request_id": "é"}, "request_id", "other than"),
        ({"prompt": None}, "input", "none of text, chat and token_ids"),
        ({"prompt": TextPrompt("")}, "text", "is empty"),
        ({"prompt": TextPrompt("x" * 1001)}, "text", "1001 characters can never fit"),
        ({"prompt": TextPrompt("ab\ud800")}, "text", "not valid Unicode at character 2"),
        ({"prompt": ChatPrompt(())}, "chat.messages", "is empty"),
        ({"prompt": chat(*(("user", "x"),) * 33)}, "chat.messages", "33 messages"),
        (
            {"prompt": chat(("user", "x" * 600), ("user", "x" * 600))},
            "chat.messages",
            "1200 characters can never fit",
        ),
        (
            {"prompt": chat(("user", "x"), ("", "x"))},
            "chat.messages[1].role",
            "is empty",
        ),
        ({"prompt": chat(("r" * 65, "x"))}, "chat.messages[0].role", "65 characters"),
        ({"prompt": chat(("u\udfff", "x"))}, "chat.messages[0].role", "not valid Unicode"),
        (
            {"prompt": chat(("user", "\ud800"))},
            "chat.messages[0].content",
            "not valid Unicode",
        ),
        ({"prompt": TokenPrompt(())}, "token_ids", "is empty"),
        ({"prompt": TokenPrompt((1, 2, 100))}, "token_ids.ids[2]", "100 is no token id"),
        ({"prompt": TokenPrompt((1, -2))}, "token_ids.ids[1]", "-2 is no token id"),
        ({"prompt": TokenPrompt((1,) * 32)}, "token_ids", "32 tokens are too long"),
        ({"stop": ("x",) * 17}, "stop", "17 strings are more than 16"),
        ({"stop": ("a", "")}, "stop[1]", "is empty"),
        ({"stop": ("a", "b", "c", "x" * 257)}, "stop[3]", "257 characters are more than 256"),
        ({"stop": ("\ud800",)}, "stop[0]", "not valid Unicode"),
        ({"choices": 17}, "n", "17 is not between 1 and 16"),
        ({"best_of": 2}, "best_of", "2 is more than n, which is 1"),
        ({"choices": 3, "best_of": 4}, "best_of", "4 is more than n, which is 3"),
        ({"bad_words": ("x",) * 33}, "bad_words", "33 strings are more than 32"),
        ({"bad_words": ("a", "")}, "bad_words[1]", "is empty"),
        ({"bad_words": ("x" * 129,)}, "bad_words[0]", "129 characters are more than 128"),
        ({"bad_words": ("\ud800",)}, "bad_words[0]", "not valid Unicode"),
    ],
)
def test_fields_that_can_never_work(fields, field, message):
    error = refused(replace(FIELDS, **fields))
    assert error.field == field
    assert message in error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"request_id": "aZ09._:-" * 16},
        {"model": "demo"},
        {"prompt": TextPrompt("x" * 1000)},
        {"prompt": TextPrompt("\x00 \U0010ffff")},
        {"prompt": TokenPrompt((0, 99))},
        {"prompt": TokenPrompt((1,) * 31)},
        {"stop": ("x" * 256,) * 16},
        {"choices": 1},
        {"choices": 16, "best_of": 16},
        {"choices": 16, "best_of": 1},
        {"echo": True},
        {"bad_words": ("x" * 128,) * 32},
    ],
)
def test_fields_at_their_limits_are_kept(fields):
    checked = check_request(replace(FIELDS, **fields), LIMITS)
    for name, value in fields.items():
        if name not in ("model", "best_of"):
            assert getattr(checked, name) == value


def test_another_model_is_not_found_and_named():
    with pytest.raises(NotFound, match=r"'other' is not served here; 'demo' is") as caught:
        check_request(replace(FIELDS, model="other"), LIMITS)
    assert caught.value.field == "model"
    with pytest.raises(NotFound) as caught:
        check_request(replace(FIELDS, model="x" * 100_000), LIMITS)
    assert len(caught.value.message) < 300


def test_checks_come_in_a_fixed_order():
    fields = RequestFields(
        prompt=None,
        request_id="?",
        model="other",
        sampling=SamplingFields(temperature=NAN, top_k=-1),
        stop=("",),
    )
    assert refused(fields).field == "request_id"
    with pytest.raises(NotFound):
        check_request(replace(fields, request_id=""), LIMITS)
    fields = replace(fields, request_id="", model="")
    assert refused(fields).field == "input"
    fields = replace(fields, prompt=TextPrompt("x"))
    assert refused(fields).field == "sampling.temperature"
    fields = replace(fields, sampling=SamplingFields(top_k=-1))
    assert refused(fields).field == "sampling.top_k"
    fields = replace(fields, sampling=SamplingFields())
    assert refused(fields).field == "stop[0]"


@pytest.mark.parametrize(
    ("prompt", "field"),
    [(TextPrompt("x"), "text"), (chat(("user", "x")), "chat")],
)
@pytest.mark.parametrize(
    ("count", "message"),
    [(0, "no tokens are left"), (32, "32 tokens are too long"), (50, "50 tokens are too long")],
)
def test_prompts_without_tokens_or_with_too_many(prompt, field, count, message):
    checked = check_request(replace(FIELDS, prompt=prompt), LIMITS)
    with pytest.raises(InvalidRequest) as caught:
        check_prompt(checked, range(count), LIMITS)
    assert caught.value.field == field
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("prompt", "field"),
    [(TextPrompt("x"), "text"), (chat(("user", "x")), "chat")],
)
def test_prompts_written_with_a_token_that_only_the_tokenizer_has(prompt, field):
    checked = check_request(replace(FIELDS, prompt=prompt), LIMITS)
    with pytest.raises(InvalidRequest, match="the token 100, which") as caught:
        check_prompt(checked, (1, 100, 2), LIMITS)
    assert caught.value.field == field


def test_bad_words_written_with_a_token_that_only_the_tokenizer_has():
    checked = check_request(FIELDS, LIMITS)
    with pytest.raises(InvalidRequest, match="the token 100, which") as caught:
        check_prompt(checked, (1,), LIMITS, [[(1,)], [(2,), (100,)]])
    assert caught.value.field == "bad_words[1]"


@pytest.mark.parametrize(
    ("count", "asked", "expected"),
    [(1, None, 16), (16, None, 16), (17, None, 15), (31, None, 1), (31, 1, 1), (1, 31, 31)],
)
def test_max_tokens(count, asked, expected):
    generation = fit(count, max_tokens=asked)
    assert generation.max_tokens == expected
    assert generation.prompt_ids == tuple(range(count))
    assert len(generation.prompt_ids) + generation.max_tokens <= LIMITS.context_tokens


def test_max_tokens_without_room_gives_all_the_numbers():
    with pytest.raises(InvalidRequest) as caught:
        fit(10, max_tokens=23)
    assert caught.value.field == "sampling.max_tokens"
    assert caught.value.message == (
        "sampling.max_tokens: 10 tokens of prompt and 23 of output are 33: "
        "more than the context's 32 tokens; at most 22 have room"
    )


def test_min_tokens_above_the_default_max_tokens():
    with pytest.raises(InvalidRequest, match="16") as caught:
        fit(4, min_tokens=17)
    assert caught.value.field == "sampling.min_tokens"
    assert fit(4, min_tokens=16).sampling.min_tokens == 16


def test_bad_words_become_bad_sequences_each_once():
    checked = check_request(with_sampling(bad_sequences=((5, 6), (5, 6), (7,))), LIMITS)
    words = [[(7,), (8,)], [(8,), (9, 9)]]
    generation = check_prompt(checked, (1,), LIMITS, words)
    assert generation.sampling.bad_sequences == ((5, 6), (7,), (8,), (9, 9))


@pytest.mark.parametrize("way", [(), (1,) * 65])
def test_bad_words_that_are_no_sequence(way):
    with pytest.raises(InvalidRequest, match="not 1 to 64") as caught:
        check_prompt(check_request(FIELDS, LIMITS), (1,), LIMITS, [[(1,)], [(2,), way]])
    assert caught.value.field == "bad_words[1]"


def test_bad_words_and_bad_sequences_that_are_too_many_together():
    sequences = tuple((index,) for index in range(60))
    checked = check_request(with_sampling(bad_sequences=sequences), LIMITS)
    most = [[(index,)] for index in range(64)]
    assert len(check_prompt(checked, (1,), LIMITS, most).sampling.bad_sequences) == 64
    with pytest.raises(InvalidRequest, match="65 token sequences, more than 64") as caught:
        check_prompt(checked, (1,), LIMITS, [*most, [(64,)]])
    assert caught.value.field == "bad_words"


def test_prompt_log_probabilities_that_fit_no_message():
    large = replace(LIMITS, context_tokens=100_000)
    checked = check_request(with_sampling(prompt_logprobs=19, max_tokens=1), large)
    assert check_prompt(checked, [1] * 50_000, large)
    with pytest.raises(InvalidRequest, match="more than 1000000") as caught:
        check_prompt(checked, [1] * 50_001, large)
    assert caught.value.field == "sampling.prompt_logprobs"


numbers = st.one_of(st.none(), st.floats(width=32))
wholes = st.one_of(st.none(), st.integers(-2, 1 << 65), st.integers(0, 40))


@given(
    sampling=st.builds(
        SamplingFields,
        temperature=numbers,
        top_k=wholes,
        top_p=numbers,
        min_p=numbers,
        seed=wholes,
        max_tokens=wholes,
        min_tokens=wholes,
        stop_token_ids=st.lists(st.integers(-1, 101), max_size=3).map(tuple),
        logprobs=wholes,
        repetition_penalty=numbers,
        presence_penalty=numbers,
        frequency_penalty=numbers,
        logit_bias=st.lists(st.tuples(st.integers(-1, 101), st.floats()), max_size=2).map(tuple),
        bad_sequences=st.lists(
            st.lists(st.integers(-1, 101), max_size=2).map(tuple), max_size=2
        ).map(tuple),
        prompt_logprobs=wholes,
    ),
    count=st.integers(0, 40),
)
def test_whatever_comes_is_right_or_refused_by_name(sampling, count):
    try:
        checked = check_request(replace(FIELDS, sampling=sampling), LIMITS)
        generation = check_prompt(checked, range(count), LIMITS)
    except InvalidRequest as error:
        event(f"refused: {error.field}")
        return
    kept = generation.sampling
    assert 0 <= kept.temperature <= 100
    assert 0 < kept.top_p <= 1
    assert 0 <= kept.min_p <= 1
    assert 0 <= kept.top_k <= LIMITS.vocab_size
    assert kept.min_tokens <= generation.max_tokens
    assert 1 <= generation.max_tokens <= LIMITS.context_tokens - count
    assert all(0 <= token_id < LIMITS.vocab_size for token_id in kept.stop_token_ids)
    assert 0 < kept.repetition_penalty <= 10
    assert abs(kept.presence_penalty) <= 2
    assert abs(kept.frequency_penalty) <= 2
    assert all(0 <= token_id < 100 and abs(bias) <= 100 for token_id, bias in kept.logit_bias)
    assert all(sequence for sequence in kept.bad_sequences)
