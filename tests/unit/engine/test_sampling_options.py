"""The engine with all sampling options combined: what the reference draws, whoever runs beside
it and wherever it is handed over. The model's logits are known beforehand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.types import FinishReason, Request, SamplingParams
from tests.support.engines import (
    Result,
    assert_idle,
    drive,
    fake_engine,
    greedy,
    import_blocks,
    run,
    run_exporting,
)
from tests.support.fake_model import FakeModel
from tests.support.sampling import draws, params_of

MODEL = FakeModel((None, 6))
NEW = 10
EOS = (3,)
some_prompt = st.lists(st.integers(0, 11), min_size=1, max_size=20).map(tuple)
some_params = params_of(MODEL.vocab_size, NEW)


def end_ids(params: SamplingParams) -> set[int]:
    return {*params.stop_token_ids, *(() if params.ignore_eos else EOS)}


def alone(request: Request) -> Result:
    engine = fake_engine(eos=EOS)
    result = run(engine, request)
    assert_idle(engine)
    return result


@settings(max_examples=60, deadline=None)
@given(some_prompt, some_params, st.integers(0, 2))
def test_every_token_is_what_the_reference_draws(prompt, params, choice) -> None:
    result = alone(Request("r", prompt, params, choice=choice))
    ends = end_ids(params)
    for place, token in enumerate(result.tokens):
        output = result.tokens[:place]
        logits = MODEL.logits_after([*prompt, *output])
        assert draws(
            token, logits.tolist(), params, choice, prompt=prompt, output=output, end_ids=ends
        )
        logprob = result.sampled[place].logprob
        if params.logprobs is not None:
            assert logprob == pytest.approx(float(torch.log_softmax(logits, 0)[token]), abs=1e-5)
        ended = token in ends and place >= params.min_tokens
        assert ended == (place == len(result.tokens) - 1 and result.reason is FinishReason.STOP)
    assert len(result.tokens) == NEW or result.reason is FinishReason.STOP


@settings(max_examples=25, deadline=None)
@given(some_prompt, some_params)
def test_a_handoff_after_any_token_changes_nothing(prompt, params) -> None:
    whole = alone(Request("r", prompt, params))
    for length in range(1, len(whole.tokens)):
        source = Request("r", prompt, params, hand_over_after=length, export=True)
        first, blobs = run_exporting(fake_engine(eos=EOS), source)
        assert first.reason is FinishReason.HANDOVER
        assert first.sampled == whole.sampled[:length]
        target = fake_engine(eos=EOS)
        rest = Request("r", prompt, params, emitted=tuple(first.tokens))
        assert import_blocks(target, rest, blobs) == len(prompt) + length - 1
        result = drive(target)["r"]
        assert result.sampled == whole.sampled[length:]
        assert result.reason is whole.reason


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(some_prompt, some_params, st.integers(0, 3)), min_size=2, max_size=6))
def test_company_changes_nothing(many) -> None:
    requests = [
        Request(f"r{i}", prompt, params, choice=choice)
        for i, (prompt, params, choice) in enumerate(many)
    ]
    engine = fake_engine(eos=EOS)
    for request in requests:
        engine.admit(request)
        engine.start(request.request_id)
    together = drive(engine)
    for request in requests:
        expected = alone(request)
        assert together[request.request_id].sampled == expected.sampled
        assert together[request.request_id].reason is expected.reason


@settings(max_examples=25, deadline=None)
@given(some_prompt, some_params, st.integers(1, 5))
def test_choices_of_one_prompt_are_those_that_are_computed_alone(prompt, params, count) -> None:
    engine = fake_engine(eos=EOS)
    request = Request("r", prompt, params, choices=count, hand_over_after=1, export=True)
    first, blobs = run_exporting(engine, request)
    assert_idle(engine)
    assert engine.status().sampled_tokens == count
    assert [one.choice for one in first.first_tokens] == list(range(count))
    going_on = [one for one in first.first_tokens if one.finish_reason is None]
    assert (first.reason is FinishReason.HANDOVER) == bool(going_on)
    for one in first.first_tokens:
        whole = alone(Request("r", prompt, params, choice=one.choice))
        assert one.token == whole.sampled[0]
        if one.finish_reason is not None:
            assert (len(whole.tokens), one.finish_reason) == (1, whole.reason)
            continue
        target = fake_engine(eos=EOS)
        rest = Request("r", prompt, params, emitted=(one.token.token_id,), choice=one.choice)
        assert import_blocks(target, rest, blobs) == len(prompt)
        assert [one.token, *drive(target)["r"].sampled] == whole.sampled


def test_choices_that_all_end_with_their_first_token_are_not_handed_over() -> None:
    request = Request("r", (1, 2), greedy(1), choices=3, hand_over_after=1, export=True)
    result, _ = run_exporting(fake_engine(), request)
    assert result.reason is FinishReason.LENGTH
    assert [one.finish_reason for one in result.first_tokens] == [FinishReason.LENGTH] * 3


# -- prompt log probabilities ---------------------------------------------------------------


@pytest.mark.parametrize("chunk", [5, 16, 190])
@pytest.mark.parametrize("length", [1, 2, 4, 17, 150])
def test_prompt_logprobs_are_those_of_the_model(length: int, chunk: int) -> None:
    prompt = tuple(i * 7 % 90 for i in range(length))
    engine = fake_engine(max_step_tokens=max(chunk, 8), max_sequences=2)
    result = run(engine, Request("r", prompt, greedy(3, prompt_logprobs=2)))
    assert result.tokens == MODEL.greedy(prompt, 3)
    assert [token.token_id for token in result.prompt_logprobs] == list(prompt[1:])
    for place, token in enumerate(result.prompt_logprobs, start=1):
        logprobs = torch.log_softmax(MODEL.logits_after(prompt[:place]), 0)
        assert token.logprob == pytest.approx(float(logprobs[token.token_id]), abs=1e-5)
        best, ids = logprobs.topk(2)
        assert [id_ for id_, _ in token.top] == ids.tolist()
        assert [value for _, value in token.top] == pytest.approx(best.tolist(), abs=1e-5)


def test_prompt_logits_are_made_some_rows_at_a_time() -> None:
    engine = fake_engine(max_step_tokens=190)
    run(engine, Request("r", tuple(range(90)) * 2, greedy(2, prompt_logprobs=0)))
    assert engine._runner._model.most_rows == 64  # type: ignore[attr-defined]


def test_a_prompt_whose_logprobs_are_wanted_is_computed_past_every_cache() -> None:
    prompt = tuple(range(40))
    plain = Request("plain", prompt, greedy(3))
    wanted = Request("wanted", prompt, greedy(3, prompt_logprobs=0))
    engine = fake_engine()
    run(engine, plain)
    names = engine.names(plain)
    assert names
    assert engine.names(wanted) == ()
    admission = engine.admit(wanted, names)
    assert (admission.cached_tokens, admission.local_tokens, admission.missing) == (0, 0, ())
    assert engine.start("wanted") == 0
    assert len(drive(engine)["wanted"].prompt_logprobs) == 39
    assert_idle(engine)
    assert engine.admit(plain).cached_tokens > 0, "its own blocks are cache all the same"


def test_a_sequence_that_goes_on_does_not_report_its_prompt_again() -> None:
    prompt = tuple(range(30))
    params = greedy(4, prompt_logprobs=1)
    prefill = Request("p", prompt, params, hand_over_after=1, export=True)
    first, blobs = run_exporting(fake_engine(), prefill)
    assert len(first.prompt_logprobs) == 29
    target = fake_engine()
    rest = Request("d", prompt, params, emitted=tuple(first.tokens))
    assert import_blocks(target, rest, blobs) == 30
    assert drive(target)["d"].prompt_logprobs == []
