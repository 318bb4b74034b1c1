"""Several choices of one prompt, and its log probabilities."""

from baton.v1 import sampling_pb2
from tests.support.workers import first_of, own_output, prefill_request


async def test_choices_are_drawn_from_one_computation_and_handed_over_together(
    pair, own_engine, prompt_of
):
    prompt = prompt_of(30)
    values = {"temperature": 1.5, "seed": 5}
    request = prefill_request(prompt, choices=6, **values)
    steps = (await pair.prefill.status()).steps
    response = await pair.prefill.prefill(request)
    assert (await pair.prefill.status()).steps - steps <= 30 // 8 + 1
    assert response.stats.computed_tokens == 30
    assert [first.choice for first in response.first_tokens] == list(range(6))
    ids = [first.token.token_id for first in response.first_tokens]
    assert ids == [own_output(own_engine, prompt, choice=n, **values)[0] for n in range(6)]
    assert len(set(ids)) > 1
    assert [(choice.index, list(choice.emitted)) for choice in response.handoff.choices] == [
        (first.choice, [first.token]) for first in response.first_tokens
    ]
    await pair.transfer.release(request.lease_id)


async def test_only_unfinished_choices_are_handed_over(pair, own_engine, prompt_of):
    prompt = prompt_of(19)
    values = {"temperature": 1.5, "seed": 5}
    firsts = [own_output(own_engine, prompt, choice=n, **values)[0] for n in range(4)]
    stop = firsts[1]
    going_on = [n for n, token in enumerate(firsts) if token != stop]
    assert going_on
    response = await pair.prefill.prefill(
        prefill_request(prompt, choices=4, stop_token_ids=[stop], **values)
    )
    assert [
        first.choice
        for first in response.first_tokens
        if first.finish_reason == sampling_pb2.FINISH_REASON_STOP
    ] == [n for n in range(4) if n not in going_on]
    assert [choice.index for choice in response.handoff.choices] == going_on
    await pair.transfer.release(response.handoff.lease_id)
    every = await pair.prefill.prefill(
        prefill_request(prompt, choices=4, stop_token_ids=firsts, **values)
    )
    assert len(every.first_tokens) == 4
    assert not every.HasField("handoff")


async def test_prompt_logprobs_are_computed_past_every_cache(pair, own_engine, prompt_of):
    prompt = prompt_of(21)
    plain = await pair.prefill.prefill(prefill_request(prompt))
    response = await pair.prefill.prefill(prefill_request(prompt, prompt_logprobs=2))
    assert list(plain.prompt_logprobs) == []
    assert (response.stats.cached_tokens, response.stats.computed_tokens) == (0, 21)
    assert response.stats.published_blobs < plain.stats.published_blobs
    assert [token.token_id for token in response.prompt_logprobs] == prompt[1:]
    for token in response.prompt_logprobs:
        assert token.HasField("logprob")
        assert len(token.top_logprobs) == 2
        assert token.logprob <= token.top_logprobs[0].logprob
    # What follows a part of the prompt is what the position after it reported.
    part = await pair.prefill.prefill(prefill_request(prompt[:10], logprobs=2))
    assert [top.token_id for top in first_of(part).top_logprobs] == [
        top.token_id for top in response.prompt_logprobs[9].top_logprobs
    ]
    assert first_of(response) == first_of(plain)
    for one in (plain, response, part):
        await pair.transfer.release(one.handoff.lease_id)
