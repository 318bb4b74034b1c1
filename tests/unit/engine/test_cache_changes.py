"""Whoever follows the changes of the cache knows which blocks are here."""

import random
from collections.abc import Sequence

import pytest

from engine.errors import IntegrityError
from engine.types import Request
from tests.support.engines import drive, fake_engine, greedy, run


@pytest.mark.parametrize(
    ("windows", "group"), [((None, 6), 0), ((6, None), 1), ((6,), 0), ((4, 6, None, None), 2)]
)
def test_names_are_those_of_the_first_full_group(windows: Sequence[int | None], group: int) -> None:
    engine = fake_engine(windows=windows)
    assert engine.index_group == group
    run(engine, Request("r", tuple(range(18)), greedy(1)))
    names = engine.names(Request("r", tuple(range(18)), greedy(1)))
    assert engine.cache_names() == names[group :: len(windows)]
    assert engine.take_cache_changes().added == engine.cache_names()


def test_names_come_with_the_step_that_fills_their_blocks() -> None:
    engine = fake_engine(max_step_tokens=8)
    request = Request("r", tuple(range(12)), greedy(5))
    engine.admit(request)
    engine.start("r")
    counts = []
    while engine.has_work:
        engine.step()
        counts.append(len(engine.take_cache_changes().added))
    assert counts == [2, 1, 0, 0, 0, 1]
    assert not engine.take_cache_changes()


def test_a_tail_has_no_name_here() -> None:
    engine = fake_engine()
    run(engine, Request("r", (1, 2, 3), greedy(1)))
    assert engine.cache_names() == ()


def test_changes_lead_from_any_state_to_the_next() -> None:
    engine = fake_engine(windows=(None, 6), kv_bytes=900, max_sequences=2, max_position=40)
    rng, known, lost = random.Random(5), set(engine.cache_names()), 0
    for i in range(60):
        start = 10 * rng.randrange(6)
        run(engine, Request(f"r{i}", tuple(range(start, start + 20)), greedy(3)))
        if rng.random() < 0.5:
            continue
        changes = engine.take_cache_changes()
        assert known.isdisjoint(changes.added)
        assert known.issuperset(changes.removed)
        known = known - set(changes.removed) | set(changes.added)
        lost += len(changes.removed)
        assert known == set(engine.cache_names())
    assert lost > 0


def test_a_reset_engine_is_as_new() -> None:
    engine = fake_engine()
    run(engine, Request("r", tuple(range(18)), greedy(3)))
    engine.reset()
    assert engine.cache_names() == ()
    assert not engine.take_cache_changes()
    assert engine.status() == fake_engine().status()
    assert engine.last_shape is None
    engine.check_integrity()
    assert engine.admit(Request("r", tuple(range(18)), greedy(3))).cached_tokens == 0


def test_reset_tells_what_somebody_knows_of() -> None:
    engine = fake_engine()
    run(engine, Request("r", tuple(range(18)), greedy(3)))
    known = engine.take_cache_changes().added
    engine.reset()
    assert set(engine.take_cache_changes().removed) == set(known)


def test_an_engine_in_use_is_not_reset() -> None:
    engine = fake_engine()
    engine.admit(Request("r", tuple(range(18)), greedy(3), export=True))
    with pytest.raises(IntegrityError, match="a sequence is here"):
        engine.reset()
    engine.start("r")
    drive(engine, publish=lambda exports: None)
    with pytest.raises(IntegrityError, match="blocks are held"):
        engine.reset()
