"""Simulated workers: what steps take, and that nothing is left of what ran."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.policy.cost import StepCost
from baton.policy.fleet import Role, Task
from bench.sim.cache import Index, PrefixCache
from bench.sim.events import Events
from bench.sim.life import Life
from bench.sim.measure import Gaps
from bench.sim.worker import SimWorker, Spec

COST = StepCost(0.01, 1e-4, 1e-8, 1e-3, 1e-6)
SPEC = Spec(COST, sequences=8, kv_tokens=20_000, step_tokens=256, lookahead_s=0.1)


class Bench:
    """One worker; what is handed back comes again a little later."""

    def __init__(self, spec: Spec = SPEC) -> None:
        self.events = Events()
        self.index = Index()
        self.gaps = Gaps()
        self.ended: list[Life] = []
        self.handed: list[Life] = []
        cache = PrefixCache(0, 100, self.index)
        self.worker = SimWorker(0, Role.DECODE, spec, self.events, cache, self.gaps, self, seed=0)

    def admitted(self, worker, _life):
        assert worker.kv_tokens <= worker.spec.kv_tokens
        assert worker.running <= worker.spec.sequences

    def prompt_done(self, _worker, life):
        self.handed.append(life)

    def preempted(self, worker, life):
        life.task = Task.DECODE
        self.events.after(0.05, lambda: worker.take(life))

    def finished(self, _worker, life):
        life.ended_s = self.events.now
        self.ended.append(life)

    def changed(self, worker):
        assert worker.kv_tokens <= worker.spec.kv_tokens

    def give(self, life, at_s=0.0, task=Task.WHOLE):
        life.task = task
        self.events.at(at_s, lambda: self.worker.take(life))

    def run(self):
        self.events.run(10_000)
        worker = self.worker
        left = (worker.running, worker.kv_tokens, worker.context_tokens, worker.expected)
        assert left == (0, 0, 0, 0)
        assert not worker.itl_targets


def life(number=0, prompt=100, output=1, most=2000, blocks=()):
    return Life(number, 0.0, prompt, output, most, blocks, 1.0, 1.0, False, "")


def test_a_prompt_alone_takes_what_the_cost_model_says():
    bench, one = Bench(), life(prompt=1000)
    bench.give(one)
    bench.run()
    assert one.first_s == pytest.approx(COST.prefill_s(1000, 0, 256))
    assert bench.worker.busy_s == pytest.approx(one.first_s)


def test_tokens_alone_take_a_decode_step_each():
    bench, one = Bench(), life(output=50)
    bench.give(one)
    bench.run()
    steps_s = sum(COST.decode_step_s(1, 101 + index) for index in range(49))
    assert one.last_s - one.first_s == pytest.approx(steps_s)
    assert one.emitted == 50
    assert one.mean_itl_s == pytest.approx(steps_s / 49)


def test_one_that_arrives_joins_at_the_end_of_the_step_that_runs():
    bench, first, second = Bench(), life(0, output=500), life(1, output=5)
    bench.give(first)
    second.emitted, second.first_s = 1, 0.0
    bench.give(second, 1.0, Task.DECODE)
    bench.run()
    step_s = COST.decode_step_s(1, 200)
    assert 1.0 <= second.decode_since_s <= 1.0 + step_s
    alone_s = sum(COST.decode_step_s(1, 101 + index) for index in range(499))
    assert first.last_s - first.first_s > alone_s
    assert second.last_s - second.decode_since_s > 4 * COST.decode_step_s(2, 280)


def test_a_prompt_beside_a_batch_holds_it_up_for_a_chunk_at_a_time():
    bench, stream, prompt = Bench(), life(0, output=200), life(1, prompt=2000)
    bench.give(stream)
    bench.give(prompt, 0.5)
    bench.run()
    chunk_s = COST.step_s(prompt_tokens=255, prompt_pairs=255 * 2000, sequences=1)
    assert COST.decode_step_s(1, 200) < bench.gaps.percentile(99) <= 1.1 * chunk_s


def test_a_cached_prefix_is_not_computed():
    bench, first, second = Bench(), life(0, 1100, blocks=(1, 2)), life(1, 1100, blocks=(1, 2))
    bench.give(first)
    bench.give(second, 10.0)
    bench.run()
    assert (first.cached_tokens, second.cached_tokens) == (0, 1024)
    assert second.first_s - 10 == pytest.approx(COST.prefill_s(76, 1024, 256))
    assert bench.index.cached((1, 2, 3)) == {0: 1024}


def test_a_prompt_to_be_handed_over_leaves_with_its_first_token():
    bench, one = Bench(), life(output=9)
    bench.give(one, task=Task.PREFILL)
    bench.run()
    assert bench.handed == [one]
    assert one.emitted == 1


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(1, 600), st.integers(1, 1500), st.floats(0, 5)),
        min_size=1,
        max_size=12,
    ),
    st.integers(2500, 6000),
)
def test_everything_ends_whatever_is_preempted(requests, kv_tokens):
    bench = Bench(Spec(COST, 4, kv_tokens, 256, 0.1))
    lives = [life(number, prompt, output) for number, (prompt, output, _) in enumerate(requests)]
    for one, (_, _, at_s) in zip(lives, requests, strict=True):
        bench.give(one, at_s)
    bench.run()
    assert sorted(one.number for one in bench.ended) == list(range(len(lives)))
    assert all(one.emitted == one.output_tokens for one in lives)


def test_the_least_recently_used_blocks_make_room_last_ones_first():
    index = Index()
    cache = PrefixCache(0, 3, index)
    cache.add((1, 2, 3))
    assert cache.match((1, 9)) == 512
    cache.add((4,))
    assert cache.match((1, 2, 3)) == 1024
    assert index.cached((1, 2, 3)) == {0: 1024}


def test_actions_run_by_time_then_in_order():
    events, seen = Events(), []
    for name, at_s in (("c", 2), ("a", 1), ("b", 1), ("d", 3)):
        events.at(at_s, lambda name=name: seen.append(name))
    events.run(2.5)
    assert seen == ["a", "b", "c"]
    assert events.now == 2.5
