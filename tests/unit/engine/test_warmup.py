"""Warming up measures prompts and decodes of many shapes, in its time, and leaves no trace."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.engine import Engine
from engine.models.batch import ForwardBatch
from engine.steps import StepReport, pairs
from engine.types import Request
from engine.warmup import REPEATS, DecodeShape, PromptShape, shapes, warm_up
from tests.support.engines import assert_idle, fake_engine, greedy, run
from tests.support.fake_model import FakeModel
from tests.support.models import tiny_gemma3, tiny_llama
from tests.unit.engine.growing import growing_engine


class TimedModel(FakeModel):
    """Does not look at its KV, which is made up; each step takes a second of its own clock."""

    def __init__(self, windows: Sequence[int | None]) -> None:
        super().__init__(windows)
        self.seconds = 0.0
        self.token_ids: set[int] = set()

    def hidden(self, batch: ForwardBatch, kv: Sequence[Tensor]) -> Tensor:
        self.seconds += 1.0
        self.token_ids |= set(batch.token_ids.tolist())
        return super().hidden(batch, kv)

    def logits(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), self.vocab_size)


def timed_engine(
    growth: int | None = None, windows: Sequence[int | None] = (None, 6), **config: int
) -> tuple[Engine, TimedModel]:
    model = TimedModel(windows)
    return growing_engine(growth, windows=windows, model=model, **config), model


def warm(engine: Engine, model: TimedModel, budget_s: float = 1e9) -> list[StepReport]:
    return warm_up(engine, budget_s, clock=lambda: model.seconds)


def assert_new(engine: Engine, like: Engine) -> None:
    assert_idle(engine)
    assert engine.status() == like.status()
    assert engine.cache_names() == ()
    assert not engine.take_cache_changes()
    assert engine.last_shape is None
    assert not engine.has_work


def test_prompts_and_batches_of_all_sizes_are_measured_with_and_without_context() -> None:
    engine, model = timed_engine(max_step_tokens=64, max_sequences=8, max_position=200)
    found = [report.shape for report in warm(engine, model)]
    prompts = {(s.prompt_tokens, s.prompt_pairs) for s in found if s.prompt_tokens}
    assert {(tokens, pairs(0, tokens)) for tokens in (4, 16, 64)} <= prompts
    assert (64, pairs(132, 64)) in prompts, "the longest context"
    batches = {s.sequences for s in found if s.sequences}
    assert batches == {1, 2, 4, 8}
    for batch in batches:
        contexts = [s.context_tokens / batch for s in found if s.sequences == batch]
        assert max(contexts) > 2 * min(contexts)
    assert not any(s.prompt_tokens and s.sequences for s in found)
    assert_new(engine, timed_engine(max_step_tokens=64, max_sequences=8, max_position=200)[0])


def test_the_first_step_of_each_shape_is_not_reported() -> None:
    engine, model = timed_engine()
    reports = warm(engine, model)
    assert len(reports) == REPEATS * len(shapes(engine))
    assert model.seconds == (1 + REPEATS) * len(shapes(engine))
    assert {report.seconds for report in reports} == {1.0}


@pytest.mark.parametrize("budget", range(40))
def test_a_budget_is_kept_and_nothing_is_left(budget: int) -> None:
    engine, model = timed_engine()
    reports = warm(engine, model, budget)
    assert model.seconds == min(budget, (1 + REPEATS) * len(shapes(engine)))
    if budget >= 2 * (1 + REPEATS):
        assert any(report.shape.prompt_tokens for report in reports)
        assert any(report.shape.sequences for report in reports)
    assert_new(engine, timed_engine()[0])


def test_contexts_need_no_computing() -> None:
    engine, model = timed_engine(max_step_tokens=16, max_position=200)
    asked = [shape for shape in shapes(engine) if isinstance(shape, PromptShape)]
    assert max(shape.context for shape in asked) > 100
    computed = {report.shape.prompt_tokens for report in warm(engine, model)}
    assert computed == {0} | {shape.tokens for shape in asked}


def test_token_ids_are_spread_over_the_vocabulary() -> None:
    engine, model = timed_engine(max_step_tokens=64)
    warm(engine, model)
    assert len(model.token_ids) > model.vocab_size // 2
    assert model.token_ids <= set(range(model.vocab_size))


@pytest.mark.parametrize("growth", [None, 1])
@pytest.mark.parametrize("windows", [(None, 6), (None,), (5,), (None, 1)])
@pytest.mark.parametrize(
    ("kv_bytes", "max_position"),
    [(400, 2), (400, 4), (400, 6), (400, 50), (600, 50), (900, 50), (900, 8), (1_500, 200)],
)
def test_the_smallest_engines_are_warmed_up_as_far_as_they_go(
    kv_bytes: int, max_position: int, windows: Sequence[int | None], growth: int | None
) -> None:
    config = {"kv_bytes": kv_bytes, "max_position": max_position, "max_step_tokens": 8}
    engine, model = timed_engine(growth, windows, **config)
    for shape in shapes(engine):
        if isinstance(shape, DecodeShape):
            assert shape.sequences <= engine.capacity.sequences
    reports = warm(engine, model)
    assert len(reports) == REPEATS * len(shapes(engine))
    assert any(report.shape.prompt_tokens for report in reports)
    assert_new(engine, timed_engine(growth, windows, **config)[0])


def test_a_failing_model_is_the_callers_matter_and_leaves_no_sequence() -> None:
    engine, model = timed_engine()
    model.fail_next = True
    with pytest.raises(RuntimeError, match="the model failed"):
        warm(engine, model)
    assert_idle(engine)


@pytest.mark.parametrize("save", [tiny_llama, tiny_gemma3])
def test_a_real_model_computes_the_same_after_warming_up(save, tmp_path: Path) -> None:
    path = save(tmp_path, tied=False)
    config = EngineConfig(
        block_size=8, kv_bytes=4 << 20, max_sequences=8, max_step_tokens=64, threads=1,
        dtype=torch.float32,
    )  # fmt: skip
    warmed, fresh = Engine.load(path, config), Engine.load(path, config)
    reports = warm_up(warmed, 60.0)
    assert len(reports) == REPEATS * len(shapes(warmed))
    assert all(report.seconds > 0 for report in reports)
    assert_new(warmed, fresh)
    request = Request("r", tuple(range(3, 40)), greedy(12, ignore_eos=True))
    assert run(warmed, request).tokens == run(fresh, request).tokens


def test_warming_up_is_for_new_engines() -> None:
    engine = fake_engine()
    run(engine, Request("r", (1, 2, 3), greedy(2)))
    assert warm_up(engine, 0.0) == []
    assert engine.status() == fake_engine().status()
