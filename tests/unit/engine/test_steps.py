"""What steps compute and what is left to compute are told in the terms of their cost."""

import pytest

from engine.engine import Engine
from engine.steps import EngineLoad, StepShape, pairs
from engine.types import Request
from tests.support.engines import drive, fake_engine, greedy, import_blocks, run, run_exporting


def begin(engine: Engine, name: str, length: int, max_tokens: int = 20) -> None:
    engine.admit(Request(name, tuple(range(length)), greedy(max_tokens), salt=name.encode()))
    engine.start(name)


def next_shape(engine: Engine) -> StepShape | None:
    engine.step()
    return engine.last_shape


@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 7), (5, 1), (12, 4)])
def test_pairs_count_every_token_with_those_before_it_and_itself(start: int, count: int) -> None:
    assert pairs(start, count) == sum(position + 1 for position in range(start, start + count))


def test_a_step_tells_prompt_work_and_decodes_apart() -> None:
    engine = fake_engine(max_step_tokens=8)
    begin(engine, "a", 11)
    assert next_shape(engine) == StepShape(8, pairs(0, 8), 0, 0)
    assert next_shape(engine) == StepShape(3, pairs(8, 3), 0, 0)
    begin(engine, "b", 9)
    assert next_shape(engine) == StepShape(7, pairs(0, 7), 1, 12)
    assert next_shape(engine) == StepShape(2, pairs(7, 2), 1, 13)
    assert next_shape(engine) == StepShape(0, 0, 2, 14 + 10)


def test_the_last_token_of_a_prompt_is_prompt_work() -> None:
    engine = fake_engine(max_step_tokens=8)
    begin(engine, "a", 9)
    engine.step()
    assert next_shape(engine) == StepShape(1, 9, 0, 0)
    begin(engine, "b", 1)
    assert next_shape(engine) == StepShape(1, 1, 1, 10)


def test_a_handed_over_sequence_decodes_at_once_and_without_its_kv_is_prompt_work() -> None:
    prefill = Request("p", tuple(range(10)), greedy(8), hand_over_after=1, export=True)
    first, blobs = run_exporting(fake_engine(), prefill)
    decode = Request("d", prefill.prompt, greedy(8), emitted=tuple(first.tokens))
    for given, shape in ((blobs, StepShape(0, 0, 1, 11)), ({}, StepShape(11, pairs(0, 11), 0, 0))):
        engine = fake_engine()
        import_blocks(engine, decode, given)
        assert next_shape(engine) == shape


def test_no_step_and_an_empty_step_have_no_shape() -> None:
    engine = fake_engine()
    assert engine.last_shape is None
    run(engine, Request("r", (1, 2), greedy(2)))
    assert engine.last_shape == StepShape(0, 0, 1, 3)
    engine.step()
    assert engine.last_shape is None


def test_a_step_that_only_puts_out_who_left_has_no_shape() -> None:
    engine = fake_engine()
    begin(engine, "a", 5)
    engine.step()
    engine.hand_over("a")
    assert len(engine.step()) == 1
    assert engine.last_shape is None


def test_the_load_follows_every_change() -> None:
    engine = fake_engine(max_step_tokens=8)
    assert engine.current_load == EngineLoad()
    engine.admit(Request("a", tuple(range(11)), greedy(20)))
    assert engine.current_load == EngineLoad(), "not started"
    engine.start("a")
    assert engine.current_load == EngineLoad(0, 0, 11, pairs(0, 11))
    engine.step()
    assert engine.current_load == EngineLoad(0, 0, 3, pairs(8, 3))
    engine.step()
    assert engine.current_load == EngineLoad(1, 12, 0, 0)
    begin(engine, "b", 5)
    assert engine.current_load == EngineLoad(1, 12, 5, pairs(0, 5))
    status = engine.status()
    assert (status.context_tokens, status.prompt_tokens_left) == (12, 5)
    engine.cancel("a")
    assert engine.current_load == EngineLoad(0, 0, 5, pairs(0, 5))
    engine.hand_over("b")
    assert engine.current_load == EngineLoad()


def test_what_is_cached_is_not_left_to_compute() -> None:
    engine = fake_engine()
    run(engine, Request("earlier", tuple(range(20)), greedy(1)))
    engine.admit(Request("r", tuple(range(22)), greedy(1)))
    engine.start("r")
    assert engine.current_load == EngineLoad(0, 0, 2, pairs(20, 2))


def test_a_load_that_was_read_does_not_change() -> None:
    engine = fake_engine()
    begin(engine, "a", 5)
    before = engine.current_load
    drive(engine)
    assert before == EngineLoad(0, 0, 5, 15)
    assert engine.current_load == EngineLoad()
