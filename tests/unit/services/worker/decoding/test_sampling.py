"""Choices, sampling options and prompt log probabilities through real engines: the same on both
sides of a handoff as in one engine."""

import asyncio

import pytest

from baton.v1 import sampling_pb2
from tests.support.workers import (
    decode_request,
    first_of,
    handoff_of,
    own_output,
    prefill_request,
    prompt_request,
    whole,
)

SEEDED = {"temperature": 1.5, "top_p": 0.95, "seed": 77}


async def test_each_choice_of_a_handoff_goes_on_by_itself(pair, own_engine, prompt_of):
    prompt = prompt_of(27)
    response = await pair.prefill.prefill(prefill_request(prompt, choices=3, **SEEDED))
    handoff = response.handoff
    streams = await asyncio.gather(
        *(whole(pair.decode.decode(decode_request(handoff_of(handoff, n)))) for n in range(3))
    )
    texts = [
        [first.token.token_id, *stream.ids]
        for first, stream in zip(response.first_tokens, streams, strict=True)
    ]
    assert texts == [own_output(own_engine, prompt, choice=n, **SEEDED) for n in range(3)]
    assert len({tuple(text) for text in texts}) == 3
    assert [stream.started.cached_tokens for stream in streams] == [27] * 3
    await pair.transfer.release(handoff.lease_id)


async def test_a_prompts_choices_are_those_of_a_handoff(pair, own_engine, prompt_of):
    prompt = prompt_of(18)
    for choice in range(3):
        stream = await whole(pair.decode.decode(prompt_request(prompt, choice=choice, **SEEDED)))
        assert stream.ids == own_output(own_engine, prompt, choice=choice, **SEEDED)


async def test_all_sampling_options_are_right_on_both_sides(pair, own_engine, prompt_of):
    prompt = prompt_of(14)
    plain = own_output(own_engine, prompt, max_tokens=24)
    values = SEEDED | {
        "max_tokens": 24, "repetition_penalty": 1.3, "presence_penalty": 0.5,
        "frequency_penalty": -1.5, "logit_bias": {plain[1]: 6.0, prompt[0]: 5.0},
        "bad_sequences": [
            sampling_pb2.TokenSequence(token_ids=[plain[1]] * 3),
            sampling_pb2.TokenSequence(token_ids=plain[:1]),
        ],
        "min_tokens": 4, "logprobs": 1,
    }  # fmt: skip
    expected = own_output(own_engine, prompt, **values)
    assert expected != own_output(own_engine, prompt, max_tokens=24, **SEEDED)
    response, stream = await pair.generate(prompt, **values)
    assert [first_of(response).token_id, *stream.ids] == expected
    for length in (1, 5, 13, 23):
        resumed = prompt_request(prompt, emitted=expected[:length], **values)
        assert (await whole(pair.decode.decode(resumed))).ids == expected[length:]


async def test_prompt_logprobs_come_once_before_the_first_tokens(pair, own_engine, prompt_of):
    prompt = prompt_of(26)
    values = {"prompt_logprobs": 1}
    prefilled = await pair.prefill.prefill(prefill_request(prompt, **values))
    stream = await whole(pair.decode.decode(prompt_request(prompt, **values)))
    assert stream.ids == own_output(own_engine, prompt)
    assert stream.started.cached_tokens == 0
    assert [token.token_id for token in stream.prompt] == prompt[1:]
    for ours, theirs in zip(stream.prompt, prefilled.prompt_logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert ours.top_logprobs[0].token_id == theirs.top_logprobs[0].token_id
    continued = await whole(pair.decode.decode(decode_request(prefilled.handoff)))
    assert continued.prompt is None
    assert continued.started.cached_tokens == 26
    one = await whole(pair.decode.decode(prompt_request(prompt[:1], **values)))
    assert one.prompt == []
    await pair.transfer.release(prefilled.handoff.lease_id)
