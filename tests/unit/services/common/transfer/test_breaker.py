"""What counts as silence, and what ends it."""

import pytest

from baton import errors
from services.common.transfer.breaker import QUICK_S, SILENCE_S, Breaker
from tests.support.clock import FakeClock

LATE = errors.DeadlineExceeded("late")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def breaker(clock: FakeClock) -> Breaker:
    return Breaker(clock)


def test_a_long_wait_without_an_answer_opens(breaker: Breaker, clock: FakeClock) -> None:
    clock.advance(SILENCE_S)
    breaker.failed(0.0, LATE)
    assert breaker.is_open
    breaker.heard()
    assert not breaker.is_open


def test_a_short_deadline_proves_nothing(breaker: Breaker, clock: FakeClock) -> None:
    for _ in range(10):
        began = clock.now
        clock.advance(SILENCE_S * 0.9)
        breaker.failed(began, LATE)
    assert not breaker.is_open


def test_a_late_answer_proves_nothing_where_others_are_answered(
    breaker: Breaker, clock: FakeClock
) -> None:
    clock.advance(10.0)
    breaker.heard()
    clock.advance(SILENCE_S * 0.9)
    assert breaker.silent_for(0.0) == pytest.approx(SILENCE_S * 0.9)
    breaker.failed(0.0, LATE)
    assert not breaker.is_open


def test_a_failed_connection_opens_at_once(breaker: Breaker) -> None:
    breaker.failed(0.0, errors.Unavailable("refused"))
    assert breaker.is_open


def test_a_call_that_someone_cancelled_proves_nothing(breaker: Breaker, clock: FakeClock) -> None:
    clock.advance(10.0)
    breaker.failed(0.0, errors.Cancelled("gone"))
    assert not breaker.is_open


def test_a_refusal_is_an_answer(breaker: Breaker) -> None:
    breaker.failed(0.0, errors.Unavailable("refused"))
    breaker.failed(0.0, errors.NotFound("no such lease"))
    assert not breaker.is_open


def test_probes_take_longer_and_longer_and_begin_anew(breaker: Breaker) -> None:
    lengths = []
    for _ in range(5):
        lengths.append(breaker.probe_s)
        breaker.probe_failed()
    assert lengths == [0.25, 0.5, 1.0, 2.0, 2.0]
    breaker.heard()
    assert breaker.probe_s == 0.25


def test_a_quick_call_s_deadline_alone_is_enough_silence() -> None:
    assert QUICK_S > SILENCE_S
