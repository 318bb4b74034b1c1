"""Outputs that are held to a language: whatever else a request asks for, nothing else comes."""

import itertools
from collections.abc import Collection
from dataclasses import replace

import pytest

from engine.errors import MaskError
from engine.types import FinishReason, Request, SamplingParams
from tests.support.engines import assert_idle, drive, fake_engine, greedy, run
from tests.support.masks import ListedMask

EOS = 5
PROMPT = tuple(range(20, 31))
SHORT, LONG = (7, 8), (7, 8, 9, 96)
TEXTS = frozenset({SHORT, LONG, (33, 7), (64, 31, 32)})


def request(
    sampling: SamplingParams, texts: Collection[tuple[int, ...]] = TEXTS, name: str = "r", **values
) -> Request:
    emitted = values.get("emitted", ())
    return Request(name, PROMPT, sampling, mask=ListedMask(texts, emitted), **values)


WAYS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 3.0, "top_k": 1},
    {"temperature": 2.0, "top_k": 3, "top_p": 0.9},
    {"temperature": 2.0, "min_p": 0.3},
    {"temperature": 1.0, "top_p": 0.05},
    {"temperature": 1.0, "logit_bias": ((50, 100.0), (51, 100.0))},
    {"temperature": 1.0, "repetition_penalty": 5.0, "presence_penalty": 2.0},
    {"temperature": 1.0, "min_tokens": 9},
    {"temperature": 1.0, "ignore_eos": True},
    {"temperature": 1.0, "stop_token_ids": frozenset({60})},
    {"temperature": 1.0, "logprobs": 3},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_only_texts_of_the_language_come(way: dict[str, object]) -> None:
    engine = fake_engine(eos=[EOS])
    for seed in range(8):
        params = SamplingParams(max_tokens=12, seed=seed, **way)  # type: ignore[arg-type]
        result = run(engine, request(params))
        ends = {EOS, *params.stop_token_ids}
        text = tuple(token for token in result.tokens if token not in ends)
        assert text in TEXTS
        assert result.reason is FinishReason.STOP
        assert result.tokens[len(text) :] in ([], [EOS], [60])
    assert_idle(engine)


def test_a_text_that_nothing_can_follow_ends_without_an_end_token() -> None:
    result = run(fake_engine(), request(greedy(12, min_tokens=10), [LONG]))
    assert (tuple(result.tokens), result.reason) == (LONG, FinishReason.STOP)


def test_end_tokens_come_only_where_the_text_is_complete() -> None:
    bias = ((EOS, 100.0),)
    result = run(fake_engine(eos=[EOS]), request(greedy(12, logit_bias=bias), [LONG, SHORT]))
    assert result.tokens == [*SHORT, EOS]
    result = run(
        fake_engine(eos=[EOS]), request(greedy(12, logit_bias=bias, ignore_eos=True), [LONG, SHORT])
    )
    assert tuple(result.tokens) == LONG
    result = run(
        fake_engine(eos=[EOS]), request(greedy(12, logit_bias=bias, min_tokens=3), [LONG, SHORT])
    )
    assert tuple(result.tokens) == LONG


def test_the_longest_length_cuts_a_text_off() -> None:
    result = run(fake_engine(), request(greedy(3), [LONG]))
    assert (tuple(result.tokens), result.reason) == (LONG[:3], FinishReason.LENGTH)


def test_a_token_of_the_text_that_is_an_end_token_is_not_drawn_before_its_end() -> None:
    params = greedy(9, stop_token_ids=frozenset({8}))
    result = run(fake_engine(), request(params, [(7, 8, 9), (7, 10)]))
    assert tuple(result.tokens) == (7, 10)


def test_bad_sequences_leave_the_other_texts() -> None:
    params = greedy(12, bad_sequences=((7,), (33,)))
    assert run(fake_engine(), request(params)).tokens == [64, 31, 32]


def test_where_nothing_is_left_a_complete_text_ends_and_another_fails() -> None:
    engine = fake_engine()
    params = greedy(12, bad_sequences=((9,),))
    result = run(engine, request(params, [LONG, SHORT]))
    assert (tuple(result.tokens), result.reason) == (SHORT, FinishReason.STOP)
    engine.admit(request(params, [LONG]))
    engine.start("r")
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert outputs[-1].finish_reason is FinishReason.FAILED
    assert isinstance(outputs[-1].failure, MaskError)
    assert "no token can follow" in str(outputs[-1].failure)
    assert_idle(engine)


@pytest.mark.parametrize("where", ["fill_error", "accept_error"])
def test_a_mask_that_fails_ends_its_sequence_alone(where: str) -> None:
    engine = fake_engine()
    alone = run(fake_engine(), Request("a", PROMPT, greedy(6)))
    bad = request(greedy(6), name="bad")
    setattr(bad.mask, where, RuntimeError("broken"))
    for one in (Request("a", PROMPT, greedy(6)), bad, request(greedy(6), name="good")):
        engine.admit(one)
        engine.start(one.request_id)
    failures = {}
    results = {}
    while engine.has_work:
        for output in engine.step():
            results.setdefault(output.request_id, []).extend(t.token_id for t in output.tokens)
            if output.finish_reason is FinishReason.FAILED:
                failures[output.request_id] = output.failure
    assert [str(error) for error in failures.values()] == ["broken"]
    assert list(failures) == ["bad"]
    assert results["a"] == alone.tokens
    assert tuple(results["good"]) in TEXTS
    assert_idle(engine)


def test_choices_draw_their_first_tokens_from_what_is_allowed() -> None:
    params = SamplingParams(temperature=5.0, max_tokens=9, seed=3)
    texts = [(7,), (33, 7), (64, 31)]
    engine = fake_engine()
    asked = request(params, texts, choices=6, hand_over_after=1)
    result = run(engine, asked)
    firsts = {first.choice: first for first in result.first_tokens}
    assert sorted(firsts) == list(range(6))
    for first in firsts.values():
        token = first.token.token_id
        assert token in {7, 33, 64}
        assert first.finish_reason is (FinishReason.STOP if token == 7 else None)
    assert len({first.token.token_id for first in firsts.values()}) > 1
    alone = run(engine, request(params, texts, name="one", choice=4, hand_over_after=1))
    assert alone.tokens == [firsts[4].token.token_id]


def test_what_was_emitted_counts_and_who_goes_on_draws_the_same() -> None:
    params = SamplingParams(temperature=2.0, max_tokens=9, seed=5)
    texts = list(itertools.product((7, 8, 9), repeat=5))
    whole = run(fake_engine(), request(params, texts))
    assert tuple(whole.tokens) in texts
    for count in range(1, 5):
        rest = run(fake_engine(), request(params, texts, emitted=tuple(whole.tokens[:count])))
        assert rest.tokens == whole.tokens[count:]


def test_a_text_that_was_complete_before_ends_without_another_token() -> None:
    engine = fake_engine()
    result = run(engine, request(greedy(9), [LONG], emitted=LONG))
    assert (result.tokens, result.reason) == ([], FinishReason.STOP)
    assert_idle(engine)


def test_a_mask_that_allows_all_changes_nothing() -> None:
    class AllowsAll(ListedMask):
        def __init__(self) -> None:
            super().__init__([])

        may_end = True
        must_end = False

        def _next(self) -> set[int]:
            return set(range(97))

    for way in WAYS[:6]:
        params = SamplingParams(max_tokens=20, seed=9, **way)  # type: ignore[arg-type]
        free = run(fake_engine(eos=[EOS]), Request("r", PROMPT, params))
        held = run(fake_engine(eos=[EOS]), Request("r", PROMPT, params, mask=AllowsAll()))
        assert held.tokens == free.tokens


def test_masks_and_no_masks_share_a_step() -> None:
    engine = fake_engine()
    asked = [
        request(greedy(9), [LONG], name="long"),
        Request("free", PROMPT, greedy(9)),
        request(greedy(9), [SHORT], name="ends", emitted=SHORT),
        request(replace(greedy(9), logprobs=2), [SHORT], name="short"),
    ]
    for one in asked:
        engine.admit(one)
        engine.start(one.request_id)
    results = drive(engine)
    assert tuple(results["long"].tokens) == LONG
    assert results["free"].tokens == run(fake_engine(), asked[1]).tokens
    assert results["ends"].tokens == []
    assert tuple(results["short"].tokens) == SHORT
