"""The engine's promises, with a model whose every text is known beforehand."""

import gc
import tracemalloc

import pytest

from engine.engine import Engine
from engine.errors import DuplicateRequest, NoRoom, RequestError, UnknownRequest
from engine.types import FinishReason, Request, SamplingParams
from tests.support.engines import assert_idle, drive, fake_engine, greedy, run
from tests.support.fake_model import FakeModel

MODEL = FakeModel((None, 6))


def prompt_of(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple((start + i) % 97 for i in range(length))


def text_of(prompt: tuple[int, ...], count: int) -> list[int]:
    return MODEL.greedy(prompt, count)


# -- outputs ----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 90])
def test_prompts_of_every_length_around_blocks_and_chunks(length: int) -> None:
    engine = fake_engine()
    prompt = prompt_of(length)
    result = run(engine, Request("r", prompt, greedy(10)))
    assert result.tokens == text_of(prompt, 10)
    assert result.computed[-1] == length
    assert_idle(engine)


@pytest.mark.parametrize("max_tokens", [1, 2, 4, 5, 9])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    engine = fake_engine()
    result = run(engine, Request("r", prompt_of(6), greedy(max_tokens)))
    assert len(result.tokens) == max_tokens
    assert result.reason is FinishReason.LENGTH
    assert_idle(engine)


def test_max_tokens_counts_emitted_ones() -> None:
    prompt = prompt_of(6)
    text = text_of(prompt, 8)
    result = run(fake_engine(), Request("r", prompt, greedy(8), emitted=tuple(text[:5])))
    assert result.tokens == text[5:]
    assert result.reason is FinishReason.LENGTH


@pytest.mark.parametrize("place", [0, 1, 5])
def test_an_end_token_ends_the_output_and_is_part_of_it(place: int) -> None:
    prompt = prompt_of(6)
    text = text_of(prompt, 8)
    engine = fake_engine(eos=[text[place]])
    result = run(engine, Request("r", prompt, greedy(8)))
    assert result.tokens == text[: text.index(text[place]) + 1]
    assert result.reason is FinishReason.STOP
    assert_idle(engine)


def test_a_stop_token_ends_the_output_too_and_ignore_eos_does_not_touch_it() -> None:
    prompt = prompt_of(6)
    text = text_of(prompt, 8)
    assert len(set(text)) == 8
    engine = fake_engine(eos=[text[1]])
    request = Request("r", prompt, greedy(8, ignore_eos=True, stop_token_ids=frozenset({text[4]})))
    result = run(engine, request)
    assert result.tokens == text[:5]
    assert result.reason is FinishReason.STOP
    assert run(engine, Request("r", prompt, greedy(8, ignore_eos=True))).tokens == text


def test_an_end_token_at_the_last_place_is_a_stop() -> None:
    prompt = prompt_of(6)
    text = text_of(prompt, 3)
    result = run(fake_engine(eos=[text[2]]), Request("r", prompt, greedy(3)))
    assert result.reason is FinishReason.STOP


@pytest.mark.parametrize("min_tokens", [1, 2, 5, 8])
def test_min_tokens_keeps_end_tokens_from_being_drawn(min_tokens: int) -> None:
    prompt = prompt_of(6)
    text = text_of(prompt, 8)
    engine = fake_engine(eos=[text[0]])
    stops = frozenset(text[1:3])
    params = greedy(8, min_tokens=min_tokens, stop_token_ids=stops)
    result = run(engine, Request("r", prompt, params))
    ends = stops | {text[0]}
    assert not ends & set(result.tokens[:min_tokens])
    assert len(result.tokens) >= min_tokens
    if result.reason is FinishReason.STOP:
        assert len(result.tokens) > min_tokens
        assert result.tokens[-1] in ends


def test_min_tokens_counts_emitted_ones() -> None:
    prompt = prompt_of(6)
    text = text_of(prompt, 4)
    engine = fake_engine(eos=[text[3]])
    request = Request("r", prompt, greedy(8, min_tokens=3), emitted=tuple(text[:3]))
    assert run(engine, request).tokens == text[3:]


def test_log_probabilities_come_with_every_token() -> None:
    params = greedy(4, logprobs=3)
    for token in run(fake_engine(), Request("r", prompt_of(6), params)).sampled:
        assert token.logprob == pytest.approx(token.top[0][1])
        assert token.top[0][0] == token.token_id
        assert len(token.top) == 3


def test_seeded_choices_differ_and_repeat_in_any_company() -> None:
    prompt = prompt_of(9)
    requests = [
        Request(f"r{choice}", prompt, SamplingParams(seed=7, max_tokens=8), choice=choice)
        for choice in range(4)
    ]
    alone = [run(fake_engine(), request).tokens for request in requests]
    assert len({tuple(text) for text in alone}) == 4
    engine = fake_engine()
    for request in requests:
        engine.admit(request)
        engine.start(request.request_id)
    together = drive(engine)
    assert [together[request.request_id].tokens for request in requests] == alone


def test_many_sequences_of_mixed_length_share_steps() -> None:
    engine = fake_engine(max_step_tokens=11)
    prompts = {f"r{i}": prompt_of(1 + 7 * i % 40, start=3 * i) for i in range(8)}
    for request_id, prompt in prompts.items():
        engine.admit(Request(request_id, prompt, greedy(12)))
        engine.start(request_id)
    results = drive(engine)
    for request_id, prompt in prompts.items():
        assert results[request_id].tokens == text_of(prompt, 12)
    status = engine.status()
    assert status.steps == sum(status.steps_by_batch_size)
    assert sum(status.steps_by_batch_size[6:]) > 0, "steps batch"
    assert status.prefilled_tokens == sum(map(len, prompts.values()))
    assert status.sampled_tokens == 8 * 12
    assert_idle(engine)


# -- admission --------------------------------------------------------------------------


def test_a_request_is_refused_while_there_is_no_room_and_taken_later() -> None:
    engine = fake_engine(windows=(None,), kv_bytes=32 * 20, max_sequences=4)
    large, small = (
        Request("large", prompt_of(50), greedy(20)),
        Request("s", prompt_of(9), greedy(9)),
    )
    engine.admit(large)
    assert not engine.can_admit(small)
    with pytest.raises(NoRoom):
        engine.admit(small)
    engine.check_integrity()
    engine.start("large")
    drive(engine)
    assert engine.can_admit(small)
    assert run(engine, small).tokens == FakeModel((None,)).greedy(small.prompt, 9)


def test_no_more_sequences_than_places() -> None:
    engine = fake_engine(max_sequences=3)
    for i in range(3):
        engine.admit(Request(f"r{i}", (1,), greedy(1)))
    assert not engine.can_admit(Request("one more", (1,), greedy(1)))
    with pytest.raises(NoRoom, match="3 places"):
        engine.admit(Request("one more", (1,), greedy(1)))


def test_ids_are_unique_while_they_live() -> None:
    engine = fake_engine()
    engine.admit(Request("r", (1,), greedy(2)))
    for _ in range(2):
        with pytest.raises(DuplicateRequest):
            engine.admit(Request("r", (1,), greedy(1)))
        if not engine.has_work:
            engine.start("r")
    drive(engine)
    engine.admit(Request("r", (1,), greedy(1)))


def test_only_what_waits_is_started() -> None:
    engine = fake_engine()
    with pytest.raises(UnknownRequest):
        engine.start("r")
    engine.admit(Request("r", (1,), greedy(2)))
    engine.start("r")
    with pytest.raises(UnknownRequest):
        engine.start("r")


def test_the_context_limit_is_exact() -> None:
    engine = fake_engine(max_position=50)
    assert engine.limits.context_tokens == 50
    prompt = prompt_of(45)
    assert run(engine, Request("r", prompt, greedy(5))).tokens == text_of(prompt, 5)
    with pytest.raises(RequestError, match="context of 50"):
        engine.admit(Request("r", prompt, greedy(6)))
    engine.admit(Request("r", prompt, greedy(1_000), hand_over_after=1))


def test_a_refused_request_leaves_nothing() -> None:
    engine = fake_engine()
    with pytest.raises(RequestError):
        engine.admit(Request("r", (), greedy(1)))
    assert_idle(engine)


# -- cancel -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [None, 0, 1, 2, 3, 5, 11])
def test_a_cancel_in_any_phase_frees_everything(steps: int | None) -> None:
    engine = fake_engine()
    engine.admit(Request("r", prompt_of(40), greedy(10)))
    if steps is not None:
        engine.start("r")
        for _ in range(steps):
            engine.step()
    engine.cancel("r")
    assert_idle(engine)
    assert not engine.has_work
    engine.cancel("r")
    engine.cancel("never seen")
    assert engine.step() == []
    assert run(engine, Request("r", prompt_of(40), greedy(10))).tokens == text_of(prompt_of(40), 10)


def test_a_cancel_leaves_neighbours_alone() -> None:
    engine = fake_engine()
    prompt = prompt_of(20)
    for request_id in ("goes", "stays"):
        engine.admit(Request(request_id, prompt, greedy(20)))
        engine.start(request_id)
    results = drive(engine, until=lambda r: any(len(one.tokens) >= 5 for one in r.values()))
    engine.cancel("goes")
    drive(engine, results)
    assert results["stays"].tokens == text_of(prompt, 20)
    assert results["goes"].reason is None
    assert_idle(engine)


# -- status -----------------------------------------------------------------------------


def test_status_follows_the_phases() -> None:
    engine = fake_engine()
    engine.admit(Request("r", prompt_of(10), greedy(5)))
    status = engine.status()
    assert (status.waiting, status.running, status.held_tokens) == (1, 0, 15)
    assert not engine.has_work
    engine.start("r")
    engine.step()
    status = engine.status()
    assert (status.waiting, status.running, status.held_tokens) == (0, 1, 15)
    assert [group.name for group in status.groups] == ["full", "window-6"]
    assert [group.used_blocks for group in status.groups] == [3, 2]
    assert status.groups[0].block_bytes == engine.layout.block_bytes(0)


def test_memory_is_flat_over_many_requests() -> None:
    engine = fake_engine(kv_bytes=4_000)

    def requests(count: int) -> None:
        for i in range(count):
            run(engine, Request(f"r{i}", prompt_of(1 + i % 9, start=i), greedy(2)))

    tracemalloc.start()
    try:
        requests(300)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        requests(600)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 60_000
    assert_idle(engine)


def test_a_failing_model_raises_from_step() -> None:
    engine: Engine = fake_engine()
    engine.admit(Request("r", (1, 2), greedy(2)))
    engine.start("r")
    engine._runner._model.fail_next = True  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="the model failed"):
        engine.step()
    engine.cancel("r")
    assert_idle(engine)
