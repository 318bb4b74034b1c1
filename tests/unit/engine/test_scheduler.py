"""Steps hold one token of each decoding sequence, then prompts in their order; nobody waits
for another's blocks."""

import random

import pytest

from engine.config import EngineConfig
from engine.errors import IntegrityError
from engine.kv.cache import KVCache
from engine.kv.layout import KVLayout
from engine.kv.sizing import PoolPlan, peak_blocks, step_blocks
from engine.scheduler import Scheduler
from engine.sequence import LiveSequence
from engine.types import Capacity, Request, SampledToken
from tests.support.engines import greedy
from tests.support.fake_model import FakeModel

PLENTY = 1_000


def make_cache(windows: list[int | None], blocks: list[int], max_step_tokens: int) -> KVCache:
    config = EngineConfig(block_size=4)
    layout = KVLayout("model", "float32", config.dtype, 4, FakeModel(windows).kv_groups(), "fake")
    plan = PoolPlan(tuple(blocks), Capacity(8, 1), 1)
    return KVCache(layout, plan, max_step_tokens, "cpu")


class Harness:
    """A scheduler and a cache, without a model."""

    def __init__(self, cache: KVCache, max_step_tokens: int) -> None:
        self.cache = cache
        self.scheduler = Scheduler(max_step_tokens)
        self.live: list[LiveSequence] = []

    def add(self, name: str, prompt: int, max_tokens: int = 50) -> LiveSequence:
        request = Request(name, tuple(range(prompt)), greedy(max_tokens), salt=name.encode())
        sequence = LiveSequence(request, self.cache.open(request), frozenset())
        self.cache.settle(sequence.kv, ())
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    def step(self) -> list[tuple[str, int]]:
        """What the step computed: request and tokens."""
        chunks = self.scheduler.schedule(self.cache)
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.computed = chunk.end
            self.cache.commit(sequence.kv, sequence.tokens, chunk.end)
            reason = sequence.append([SampledToken(1)]).reason if chunk.samples else None
            if reason is None:
                self.cache.leave_behind(sequence.kv, sequence.boundary(4))
            else:
                self.cache.close(sequence.kv)
                self.scheduler.remove(sequence)
                self.live.remove(sequence)
        self.scheduler.check_integrity(self.live)
        return [(chunk.sequence.request.request_id, chunk.count) for chunk in chunks]


def test_decodes_come_first_and_prompts_share_what_is_left_in_order() -> None:
    harness = Harness(make_cache([None], [PLENTY], 10), 10)
    harness.add("a", 23)
    assert harness.step() == [("a", 10)]
    harness.add("b", 4)
    harness.add("c", 6)
    assert harness.step() == [("a", 10)]
    assert harness.step() == [("a", 3), ("b", 4), ("c", 3)]
    assert harness.step() == [("a", 1), ("b", 1), ("c", 3)]
    assert harness.step() == [("a", 1), ("b", 1), ("c", 1)]


def test_a_long_prompt_does_not_hold_up_decodes() -> None:
    harness = Harness(make_cache([None], [PLENTY], 8), 8)
    for name in "abc":
        harness.add(name, 1)
    harness.step()
    harness.add("long", 100)
    for _ in range(10):
        assert harness.step() == [("a", 1), ("b", 1), ("c", 1), ("long", 5)]


def test_a_decode_that_joins_later_does_not_wait_behind_a_long_prompt() -> None:
    """Such as one that was handed over: it has one token to compute from the start."""
    harness = Harness(make_cache([None], [PLENTY], 8), 8)
    harness.add("long", 100)
    assert harness.step() == [("long", 8)]
    harness.add("joined", 1)
    for _ in range(10):
        assert harness.step() == [("joined", 1), ("long", 7)]


def test_a_step_without_blocks_waits_and_goes_on_with_them() -> None:
    harness = Harness(make_cache([None], [4], 16), 16)
    harness.add("a", 13, max_tokens=1)
    taken = [harness.cache._pools[0].allocate() for _ in range(3)]
    assert harness.step() == [("a", 4)], "as much as there is room for"
    assert harness.scheduler.schedule(harness.cache) == []
    for block in taken:
        harness.cache._pools[0].release(block)
    assert harness.step() == [("a", 9)]


@pytest.mark.parametrize("window", [1, 2, 4, 5, 6, 9, 13])
@pytest.mark.parametrize("budget", [4, 6, 11])
def test_in_pools_as_small_as_promised_nobody_ever_waits(window: int, budget: int) -> None:
    """Sequences of all alignments come and go; each step is as big as its budget allows."""
    rng = random.Random(window * 100 + budget)
    places, most = 4, 60
    layout = make_cache([None, window], [1, 1], 1).layout
    blocks = [
        places * peak_blocks(layout, group, most) + step_blocks(layout, group, budget)
        for group in range(2)
    ]
    harness = Harness(make_cache([None, window], blocks, budget), budget)
    for made in range(400):
        if len(harness.live) < places and rng.random() < 0.3:
            prompt = rng.randint(1, most - 1)
            harness.add(f"r{made}", prompt, max_tokens=rng.randint(1, most - prompt))
        wanted = sum(sequence.remaining for sequence in harness.live)
        assert sum(count for _, count in harness.step()) == min(budget, wanted)
        harness.cache.check_integrity([sequence.kv for sequence in harness.live])


def test_check_integrity_finds_a_lost_sequence() -> None:
    harness = Harness(make_cache([None], [PLENTY], 8), 8)
    sequence = harness.add("a", 3)
    harness.scheduler.remove(sequence)
    with pytest.raises(IntegrityError):
        harness.scheduler.check_integrity([sequence])
