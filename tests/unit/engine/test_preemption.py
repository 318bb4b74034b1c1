"""Sequences that outgrow a full pool: who leaves, who goes on, and that all come to their end."""

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.naming import BlobName
from engine.engine import Engine
from engine.errors import NoRoom, RequestError
from engine.types import BlockRef, FinishReason, Request, SequenceOutput
from tests.support.engines import assert_idle, drive, greedy, import_blocks, read_blocks, run
from tests.support.fake_model import FakeModel
from tests.unit.engine.growing import growing_engine

MODEL = FakeModel((None,))
ROUNDS = 20_000


def tight_engine(growth: int | None = 4, blocks: int = 12, max_sequences: int = 3) -> Engine:
    """One full-attention group of so many blocks of 4 tokens."""
    return growing_engine(
        growth, windows=(None,), kv_bytes=32 * blocks, max_sequences=max_sequences, max_position=60
    )


def request_of(name: str, length: int, max_tokens: int, **values: object) -> Request:
    start = sum(name.encode()) * 5
    prompt = tuple((start + i) % 97 for i in range(length))
    return Request(name, prompt, greedy(max_tokens), **values)  # type: ignore[arg-type]


def begin(engine: Engine, *requests: Request) -> None:
    for request in requests:
        engine.admit(request)
        engine.start(request.request_id)


def until_preempted(engine: Engine) -> list[str]:
    """Step to the first step that preempts: who left in it, in that order."""
    for _ in range(100):
        outputs = engine.step()
        engine.check_integrity()
        for output in outputs:
            engine.release_exports(output.exports)
        left = [one.request_id for one in outputs if one.finish_reason is FinishReason.PREEMPTED]
        if left:
            return left
    raise AssertionError("nobody was preempted")


# -- promises ---------------------------------------------------------------------------


def test_admission_promises_what_comes_next_and_growing_raises_it() -> None:
    engine = tight_engine(growth=4)
    begin(engine, request_of("a", 10, 9))
    held = [engine.status().held_tokens]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
        held.append(engine.status().held_tokens)
    assert held == [14, 14, 14, 14, 14, 18, 18, 18, 18, 0]


def test_more_sequences_are_admitted_than_their_lives_would_allow() -> None:
    requests = [request_of(name, 6, 30) for name in "abc"]
    cautious, hopeful = tight_engine(growth=None), tight_engine()
    cautious.admit(requests[0])
    assert not cautious.can_admit(requests[1])
    for request in requests:
        assert hopeful.can_admit(request)
        hopeful.admit(request)
    assert hopeful.status().held_tokens == 3 * 10


def test_a_life_that_could_never_fit_is_refused_all_the_same() -> None:
    engine = tight_engine()
    longest = engine.limits.context_tokens - 5
    with pytest.raises(RequestError, match="context"):
        engine.admit(request_of("a", 5, longest + 1))
    alone = request_of("a", 5, longest)
    assert run(engine, alone).tokens == MODEL.greedy(alone.prompt, longest)
    assert engine.status().preempted == 0


def test_a_sequence_to_be_handed_over_is_promised_its_whole_life() -> None:
    engine = tight_engine(growth=2)
    engine.admit(request_of("a", 10, 20, hand_over_after=15))
    assert engine.status().held_tokens == 25


@pytest.mark.parametrize("growth", [1, 2, 5, 100])
def test_one_sequence_alone_always_comes_to_its_end(growth: int) -> None:
    engine = tight_engine(growth)
    length = engine.limits.context_tokens
    request = request_of("a", 3, length - 3)
    assert run(engine, request).tokens == MODEL.greedy(request.prompt, length - 3)
    assert engine.status().preempted == 0
    assert_idle(engine)


# -- victims ----------------------------------------------------------------------------


def test_the_last_started_leaves_first() -> None:
    engine = tight_engine()
    begin(engine, *(request_of(name, 8, 30) for name in "abc"))
    assert until_preempted(engine) == ["c"]
    assert until_preempted(engine) == ["b"]


def test_the_least_important_leaves_first_even_if_it_is_the_one_that_grows() -> None:
    engine = tight_engine()
    begin(
        engine, request_of("a", 11, 30), request_of("b", 8, 30, priority=2),
        request_of("c", 8, 30, priority=1),
    )  # fmt: skip
    assert until_preempted(engine) == ["a"]
    assert until_preempted(engine) == ["c"]
    assert drive(engine)["b"].reason is FinishReason.LENGTH


def test_sequences_that_end_with_a_handover_stay_while_others_can_leave() -> None:
    engine = tight_engine(growth=2)
    prompt = request_of("p", 10, 30, hand_over_after=20, priority=-1)
    begin(engine, request_of("a", 6, 30, priority=5), request_of("b", 6, 30), prompt)
    assert until_preempted(engine) == ["b"]
    results = drive(engine)
    assert results["a"].reason is FinishReason.PREEMPTED
    assert results["p"].reason is FinishReason.HANDOVER


def test_as_many_leave_as_it_takes_and_the_last_stays() -> None:
    """The pool is full, and two leave that have a block each, when one needs two more."""
    engine = tight_engine(growth=16, max_sequences=6)
    long = request_of("long", 4, 23, priority=1)
    begin(engine, long)
    results = drive(engine, until=lambda r: "long" in r and len(r["long"].tokens) == 16)
    begin(engine, *(request_of(f"s{i}", 1, 8 if i < 2 else 4) for i in range(5)))
    drive(engine, results)
    left = [name for name, one in results.items() if one.reason is FinishReason.PREEMPTED]
    assert left == ["s4", "s3"]
    assert results["long"].tokens == MODEL.greedy(long.prompt, 23)
    assert_idle(engine)


def test_the_last_one_waits_for_room_that_is_set_aside_for_others() -> None:
    engine = tight_engine(blocks=10)
    grower = request_of("a", 8, 20)
    begin(engine, grower)
    engine.admit(request_of("w", 20, 4))
    results = drive(engine)
    assert results["a"].reason is None
    assert not engine.has_work
    engine.check_integrity()
    engine.cancel("w")
    assert engine.has_work
    assert drive(engine, results)["a"].tokens == MODEL.greedy(grower.prompt, 20)
    assert engine.status().preempted == 0


def test_room_is_never_taken_from_a_sequence_that_was_promised_it() -> None:
    engine = tight_engine()
    begin(engine, request_of("a", 8, 30))
    with pytest.raises(NoRoom):
        engine.admit(request_of("b", 38, 2))
    engine.check_integrity()


# -- going on ---------------------------------------------------------------------------


@pytest.mark.parametrize("export", [False, True])
def test_a_victim_takes_all_of_its_kv_along(export: bool) -> None:
    engine, other = tight_engine(), tight_engine()
    first, second = request_of("a", 8, 30, export=export), request_of("b", 9, 30, export=export)
    begin(engine, first, second)
    blobs: dict[BlobName, bytes] = {}
    exports: list[BlockRef] = []
    text: list[int] = []
    last: SequenceOutput | None = None
    while last is None or last.finish_reason is None:
        for output in engine.step():
            blobs.update(read_blocks(engine, output.exports))
            engine.release_exports(output.exports)
            if output.request_id == "b":
                last = output
                exports += output.exports
                text += [token.token_id for token in output.tokens]
    assert last.finish_reason is FinishReason.PREEMPTED
    assert last.tokens == ()
    assert last.kv_tokens == len(second.prompt) + len(text) - 1
    assert len({(ref.group, ref.index) for ref in exports}) == len(exports)
    assert sum(ref.used_tokens for ref in exports) == last.kv_tokens
    resumed = replace(second, emitted=tuple(text))
    assert import_blocks(other, resumed, blobs) == last.kv_tokens, "nothing is computed again"
    assert text + drive(other)["b"].tokens == MODEL.greedy(second.prompt, 30)
    assert drive(engine)["a"].reason is FinishReason.LENGTH
    status = engine.status()
    assert (status.preempted, status.handed_over) == (1, 0)
    assert_idle(engine)
    assert_idle(other)


def test_pins_of_a_victim_delay_who_grows_and_their_release_lets_it_go_on() -> None:
    engine = tight_engine()
    grower = request_of("a", 8, 30)
    begin(engine, grower, request_of("b", 16, 26))
    pinned: list[BlockRef] = []
    results = drive(engine, publish=pinned.extend)
    assert results["b"].reason is FinishReason.PREEMPTED
    assert results["a"].reason is None
    assert not engine.has_work
    engine.release_exports(pinned)
    assert engine.has_work
    assert drive(engine, results)["a"].tokens == MODEL.greedy(grower.prompt, 30)
    assert_idle(engine)


@dataclass
class Fleet:
    """Engines that take requests from one queue, and queue those up again that come back."""

    engines: list[Engine]
    rng: random.Random
    given: str
    """Which of the exported blocks a resume gets: `all`, `some` or `none`."""
    queue: deque[Request]
    texts: dict[str, list[int]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    blobs: dict[BlobName, bytes] = field(default_factory=dict)
    reasons: Counter[FinishReason] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.live: list[dict[str, Request]] = [{} for _ in self.engines]
        self.pinned: list[list[BlockRef]] = [[] for _ in self.engines]
        self.wanted = len(self.queue)

    def run(self) -> None:
        for _ in range(ROUNDS):
            if len(self.ended) == self.wanted:
                return
            for number in self.rng.sample(range(len(self.engines)), len(self.engines)):
                self._admit(number)
                self._step(number)
        raise AssertionError("some sequences never come to their end")

    def _admit(self, number: int) -> None:
        engine = self.engines[number]
        while self.queue and engine.can_admit(self.queue[0]):
            request = self.queue.popleft()
            known = engine.names(request) if self.given != "none" else ()
            blobs = {name: self.blobs[name] for name in known if name in self.blobs}
            lost = [name for name in blobs if self.given == "some" and self.rng.random() < 0.4]
            import_blocks(engine, request, blobs, lost)
            self.live[number][request.request_id] = request

    def _step(self, number: int) -> None:
        engine = self.engines[number]
        if engine.has_work:
            for output in engine.step():
                self._take(number, output)
        engine.check_integrity()
        if self.rng.random() < 0.3 or not engine.has_work:
            engine.release_exports(self.pinned[number])
            self.pinned[number].clear()

    def _take(self, number: int, output: SequenceOutput) -> None:
        self.blobs.update(read_blocks(self.engines[number], output.exports))
        self.pinned[number] += output.exports
        request_id, text = output.request_id, self.texts.setdefault(output.request_id, [])
        text += [token.token_id for token in output.tokens]
        if output.finish_reason is None:
            return
        request = self.live[number].pop(request_id)
        self.reasons[output.finish_reason] += 1
        if output.finish_reason is FinishReason.PREEMPTED:
            self.queue.append(replace(request, emitted=tuple(text)))
        else:
            self.ended.add(request_id)


def random_requests(rng: random.Random, longest: int) -> Iterable[Request]:
    for i in range(rng.randint(2, 9)):
        length = rng.randint(1, longest // 2)
        yield request_of(
            f"r{i}", length, rng.randint(1, longest - length), export=rng.random() < 0.5,
            priority=rng.choice([0, 0, 1]), salt=rng.choice([b"", b"tenant"]),
        )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    engines=st.integers(1, 2),
    windows=st.sampled_from([(None,), (None, 6), (None, 9, 3), (5,)]),
    kv_bytes=st.sampled_from([500, 900, 1_400]),
    growth=st.sampled_from([1, 2, 5, 17]),
    step=st.sampled_from([4, 7, 16]),
    given=st.sampled_from(["all", "some", "none"]),
    seed=st.integers(0, 1 << 30),
)
def test_every_sequence_comes_to_its_end_with_its_text(
    engines, windows, kv_bytes, growth, step, given, seed
) -> None:
    rng = random.Random(seed)
    made = [
        growing_engine(
            growth, windows=windows, kv_bytes=max(kv_bytes, 400 * len(windows)), max_sequences=4,
            max_step_tokens=step, max_position=50, checkpoint_blocks=2,
        )
        for _ in range(engines)
    ]  # fmt: skip
    requests = list(random_requests(rng, made[0].limits.context_tokens))
    fleet = Fleet(made, rng, given, deque(requests))
    fleet.run()
    model = FakeModel(windows)
    for request in requests:
        count = request.sampling.max_tokens
        assert fleet.texts[request.request_id] == model.greedy(request.prompt, count)
    for engine, pinned in zip(made, fleet.pinned, strict=True):
        engine.release_exports(pinned)
        assert_idle(engine)
    assert (
        sum(engine.status().preempted for engine in made) == (fleet.reasons[FinishReason.PREEMPTED])
    )


@pytest.mark.parametrize("given", ["all", "some", "none"])
def test_many_sequences_in_a_pool_for_one_preempt_each_other_and_all_end(given: str) -> None:
    requests = [request_of(f"r{i}", 5, 37) for i in range(6)]
    fleet = Fleet([tight_engine(growth=2)], random.Random(1), given, deque(requests))
    fleet.run()
    assert fleet.reasons[FinishReason.PREEMPTED] >= 3
    for request in requests:
        assert fleet.texts[request.request_id] == MODEL.greedy(request.prompt, 37)
