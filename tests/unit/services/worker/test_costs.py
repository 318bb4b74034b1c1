"""The cost model learns what steps take, says how well it predicts, and follows changes."""

import random
import statistics
import time

import pytest

from baton.policy.cost import PRIORS, StepCost, pairs
from engine import Engine
from engine.steps import StepReport, StepShape
from engine.types import Request, SamplingParams
from engine.warmup import warm_up
from services.worker.costs import REFIT_S, CostModel
from tests.support.workers import lone_engine

TRUTH = StepCost(4e-3, 2e-4, 3e-8, 5e-4, 1e-6)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def model(clock):
    return CostModel(PRIORS["cpu"], clock)


def shapes(count: int, seed: int = 0) -> list[StepShape]:
    rng, found = random.Random(seed), []
    for _ in range(count):
        kind = rng.randrange(3)
        prompt = rng.randrange(8, 257) if kind != 0 else 0
        sequences = rng.randrange(1, 33) if kind != 1 else 0
        found.append(
            StepShape(
                prompt, pairs(prompt, rng.randrange(4000)) if prompt else 0,
                sequences, sequences * rng.randrange(100, 4000),
            )
        )  # fmt: skip
    return found


def seconds_of(shape: StepShape, cost: StepCost = TRUTH) -> float:
    return cost.step_s(
        prompt_tokens=shape.prompt_tokens,
        prompt_pairs=shape.prompt_pairs,
        sequences=shape.sequences,
        context_tokens=shape.context_tokens,
    )


def feed(model, clock, count, *, noise=0.05, factor=1.0, seed=0):
    rng = random.Random(seed)
    for shape in shapes(count, seed):
        clock.now += 0.02
        model.observe(StepReport(shape, seconds_of(shape) * factor * (1 + rng.gauss(0, noise))))
        _ = model.cost


def test_until_something_is_measured_the_prior_holds(model):
    assert model.cost == PRIORS["cpu"]
    assert model.cost.relative_error == 1.0
    assert model.decode_step_s == 0.0


def test_it_comes_to_predict_what_steps_take(model, clock):
    feed(model, clock, 1000)
    for shape in shapes(50, seed=9):
        assert seconds_of(shape, model.cost) == pytest.approx(seconds_of(shape), rel=0.05)
    assert 0.01 < model.cost.relative_error < 0.1


def test_it_follows_a_machine_that_becomes_slower(model, clock):
    feed(model, clock, 600)
    clock.now += 60
    feed(model, clock, 3000, factor=2.0, seed=1)
    for shape in shapes(50, seed=9):
        assert seconds_of(shape, model.cost) == pytest.approx(2 * seconds_of(shape), rel=0.15)


@pytest.mark.parametrize("idle_s", [60.0, 3600.0, 63_000.0, 1e6])
def test_what_was_learned_outlives_an_idle_time(model, clock, idle_s):
    feed(model, clock, 1000)
    clock.now += idle_s
    model.refit()
    for shape in shapes(50, seed=9):
        assert seconds_of(shape, model.cost) == pytest.approx(seconds_of(shape), rel=0.05)


def test_the_error_is_that_of_predictions_made_before(model, clock):
    feed(model, clock, 600)
    good = model.cost.relative_error
    shape = StepShape(0, 0, 8, 8000)
    for _ in range(20):
        model.observe(StepReport(shape, 2 * seconds_of(shape)))
    assert model.cost.relative_error > good + 0.2


def test_fits_come_no_more_often_than_the_period(model, clock):
    def slow_steps():
        for shape in shapes(20, seed=3):
            model.observe(StepReport(shape, 3 * seconds_of(shape)))

    feed(model, clock, 200)
    clock.now += REFIT_S
    slow_steps()
    fitted = model.cost.base_s
    clock.now += REFIT_S / 2
    slow_steps()
    assert model.cost.base_s == fitted
    clock.now += REFIT_S / 2
    assert model.cost.base_s != fitted


def test_the_decode_step_is_the_mean_of_those_that_decode(model):
    model.observe(StepReport(StepShape(64, 2080, 0, 0), 5.0))
    assert model.decode_step_s == 0.0
    for _ in range(100):
        model.observe(StepReport(StepShape(0, 0, 1, 10), 0.01))
        model.observe(StepReport(StepShape(0, 0, 2, 20), 0.03))
    assert model.decode_step_s == pytest.approx(0.02, rel=0.1)


def test_a_fit_of_all_samples_is_quick(model, clock):
    """It runs on the engine's thread, between steps: in its own time, as the best of many."""
    feed(model, clock, 3000)
    taken = []
    for _ in range(50):
        began = time.thread_time()
        model.refit()
        taken.append(time.thread_time() - began)
    assert min(taken) < 2e-3


def test_real_steps_are_predicted_from_a_warm_up_and_those_before(tiny_model):
    """In seconds of the thread itself, and but for how fast the machine is at that moment: other
    processes must not decide the outcome."""
    engine = lone_engine(tiny_model)
    model = CostModel(PRIORS["cpu"])
    model.learn(warm_up(engine, 3.0, time.thread_time))
    assert model.cost.relative_error < 1.0
    for seed in range(3):
        for report in _steps(engine, seed):
            model.observe(report)
        model.refit()
    cost = model.cost
    ratios = [one.seconds / seconds_of(one.shape, cost) for one in _steps(engine, 4)]
    pace = statistics.median(ratios)
    assert 0.4 < pace < 2.5
    assert statistics.median(abs(ratio / pace - 1) for ratio in ratios) < 0.15


def _steps(engine: Engine, seed: int) -> list[StepReport]:
    """Of prompts and batches as they come."""
    rng, reports = random.Random(seed), []
    for number in range(12):
        prompt = tuple(rng.randrange(3, 100) for _ in range(rng.randrange(10, 120)))
        params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
        if not engine.can_admit(request := Request(f"one-{number}", prompt, params)):
            while engine.has_work:
                reports.append(_step(engine))
        engine.admit(request)
        engine.start(request.request_id)
        reports += [_step(engine) for _ in range(5)]
    while engine.has_work:
        reports.append(_step(engine))
    return reports


def _step(engine: Engine) -> StepReport:
    began = time.thread_time()
    engine.step()
    seconds = time.thread_time() - began
    assert engine.last_shape is not None
    return StepReport(engine.last_shape, seconds)


WARMED = [
    *(StepShape(tokens, pairs(tokens, before), 0, 0)
      for tokens, before in ((32, 0), (128, 0), (64, 8000), (8, 0))),
    *(StepShape(0, 0, sequences, sequences * context)
      for sequences, context in ((1, 32), (15, 32), (15, 2000), (1, 16_000))),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_a_long_time_of_short_steps_leaves_what_long_ones_take_known(model, clock, seed):
    rng = random.Random(seed)

    def measured(shape):
        return StepReport(shape, seconds_of(shape) * rng.lognormvariate(0, 0.2))

    model.learn([measured(shape) for shape in WARMED for _ in range(2)])
    for _ in range(4000):
        clock.now += 0.25
        tokens, sequences = rng.randrange(5, 16), rng.randrange(1, 4)
        prompt = StepShape(tokens, pairs(tokens, 0), 0, 0)
        model.observe(measured(rng.choice((prompt, StepShape(0, 0, sequences, sequences * 50)))))
        cost = model.cost
        assert cost.prefill_s(2000, 0, 128) < 3 * TRUTH.prefill_s(2000, 0, 128)
        assert cost.decode_step_s(8, 32_000) < 3 * TRUTH.decode_step_s(8, 32_000)
    assert cost.prefill_s(2000, 0, 128) > TRUTH.prefill_s(2000, 0, 128) / 2
    assert cost.decode_step_s(8, 32_000) > TRUTH.decode_step_s(8, 32_000) / 2


def test_a_few_steps_are_enough_to_find_the_speed():
    prior = StepCost(0.02, 2e-3, 1e-7, 5e-3, 5e-6)
    model = CostModel(prior)
    shapes = [StepShape(100, 5_000, 0, 0), StepShape(0, 0, 4, 400), StepShape(200, 20_000, 0, 0)]
    reports = [
        StepReport(
            shape,
            prior.step_s(
                prompt_tokens=shape.prompt_tokens,
                prompt_pairs=shape.prompt_pairs,
                sequences=shape.sequences,
                context_tokens=shape.context_tokens,
            )
            * 10,
        )
        for shape in shapes
    ]
    model.learn(reports)
    cost = model.cost
    assert cost.relative_error < 0.3
    assert cost.step_s(prompt_tokens=150, prompt_pairs=11_000) == pytest.approx(
        10 * prior.step_s(prompt_tokens=150, prompt_pairs=11_000), rel=0.3
    )


def test_a_process_that_was_stopped_is_no_slow_step():
    model = CostModel(StepCost(0.02, 2e-3, 1e-7, 5e-3, 5e-6))
    for seconds in (0.01, 0.01, 30.0, 0.01):
        model.observe(StepReport(StepShape(0, 0, 1, 10), seconds))
    assert model.decode_step_s < 0.02
