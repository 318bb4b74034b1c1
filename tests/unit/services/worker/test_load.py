"""What a worker tells of its load follows from the engine's load, its runs and the cost."""

import pytest

from baton.naming import RequestId
from baton.policy.cost import StepCost, pairs
from baton.policy.fleet import Claim, Usage
from engine.steps import EngineLoad
from services.worker.costs import CostModel
from services.worker.load import LoadMeter
from services.worker.runs import PromptWork, Runs

COST = StepCost(0.01, 1e-4, 1e-8, 1e-3, 1e-6)
STEP = 256


class Worker:
    """A load meter and what it reads."""

    def __init__(self):
        self.engine = EngineLoad()
        self.runs = Runs(lambda: None)
        self.meter = LoadMeter(
            lambda: self.engine,
            self.runs,
            CostModel(COST),
            max_sequences=32,
            step_tokens=STEP,
            lookahead_steps=2,
        )

    @property
    def load(self):
        return self.meter.load()


@pytest.fixture
def worker():
    return Worker()


def claim(name: str) -> Claim:
    return Claim(RequestId(name), 0)


def test_an_idle_worker_has_nothing_before_it(worker):
    load = worker.load
    assert (load.prompt_backlog_s, load.context_tokens, load.decode_step_s) == (0.0, 0, 0.0)
    assert (load.itl_target_s, load.sequence_limit) == (None, None)


def test_the_backlog_is_what_the_prompts_left_take(worker):
    worker.engine = EngineLoad(prompt_tokens_left=1000, prompt_pairs_left=pairs(1000, 0))
    assert worker.load.prompt_backlog_s == pytest.approx(COST.prefill_s(1000, 0, STEP))


def test_prompts_beside_a_batch_take_its_steps_too(worker):
    worker.engine = EngineLoad(56, 50_000, prompt_tokens_left=400, prompt_pairs_left=80_200)
    steps, beside = 2, COST.decode_step_s(56, 50_000)
    expected = 400 * COST.prompt_token_s + 80_200 * COST.prompt_pair_s + steps * beside
    assert worker.load.prompt_backlog_s == pytest.approx(expected)


async def test_prompts_that_wait_for_their_kv_count_from_their_admission_on(worker):
    async with worker.runs.enter(claim("one"), Usage(1, 200)) as run:
        assert worker.load.prompt_backlog_s == 0.0
        run.admitted(PromptWork(100, 60))
        assert worker.load.prompt_backlog_s == pytest.approx(COST.prefill_s(100, 60, STEP))
        run.started()
        assert worker.load.prompt_backlog_s == 0.0


async def test_the_tightest_target_sets_how_many_sequences_are_taken(worker):
    worker.engine = EngineLoad(4, 4000)
    async with (
        worker.runs.enter(claim("one"), Usage(1, 1), 0.5) as one,
        worker.runs.enter(claim("two"), Usage(1, 1), 0.022) as two,
        worker.runs.enter(claim("three"), Usage(1, 1)) as three,
    ):
        three.admitted()
        assert (worker.load.itl_target_s, worker.load.sequence_limit) == (None, None)
        one.admitted()
        assert (worker.load.itl_target_s, worker.load.sequence_limit) == (0.5, 32)
        two.admitted()
        assert (worker.load.itl_target_s, worker.load.sequence_limit) == (0.022, 6)
    assert worker.load.sequence_limit is None


def test_a_batch_that_can_hold_no_target_still_takes_one(worker):
    assert worker.meter._limit(COST, EngineLoad(1, 100), 0.001) == 1


def test_the_lookahead_is_that_many_full_steps(worker):
    step = COST.step_s(prompt_tokens=STEP, prompt_pairs=pairs(STEP, 0))
    assert worker.meter.lookahead_s == pytest.approx(2 * step)
    assert worker.meter.recompute_s() == pytest.approx(step / STEP)


def test_running_low_is_told_once_each_time(worker):
    def left(tokens):
        worker.engine = EngineLoad(prompt_tokens_left=tokens, prompt_pairs_left=pairs(tokens, 0))

    seen = []
    for tokens in (0, 2000, 1000, 500, 200, 100, 0, 0, 600, 100):
        left(tokens)
        seen.append(worker.meter.ran_low())
    assert seen == [False, False, False, False, True, False, False, False, False, True]
