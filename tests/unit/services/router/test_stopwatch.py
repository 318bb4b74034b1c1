import pytest

from baton.naming import WorkerId
from services.router.stopwatch import Stopwatch

WHO = {
    "prefill_worker": WorkerId("p"),
    "decode_worker": WorkerId("d"),
    "prefill_attempts": 1,
    "decode_attempts": 2,
}


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_phases(clock):
    watch = Stopwatch(clock)
    for moment, mark in (
        (101.0, watch.turn),
        (102.0, watch.turn),
        (104.0, lambda: watch.tokens(0, 1)),
        (104.5, lambda: watch.tokens(0, 1)),
        (109.0, lambda: watch.tokens(0, 1)),
    ):
        clock.now = moment
        mark()
    clock.now = 110.0
    timings = watch.timings(handed_off=True, **WHO)
    assert (timings.queue, timings.prefill, timings.time_to_first_token) == (1.0, 3.0, 4.0)
    assert (timings.handoff_gap, timings.total) == (0.5, 10.0)
    assert (timings.prefill_worker, timings.decode_worker) == ("p", "d")
    assert (timings.prefill_attempts, timings.decode_attempts) == (1, 2)


@pytest.mark.parametrize(("handed_off", "counts"), [(False, (1, 2)), (True, (1,))])
def test_no_handoff_gap_without_handoff_or_second_token(clock, handed_off, counts):
    watch = Stopwatch(clock)
    watch.turn()
    for _ in counts:
        clock.now += 1
        watch.tokens(0, 1)
    assert watch.timings(handed_off=handed_off, **WHO).handoff_gap is None


def test_waited(clock):
    watch = Stopwatch(clock)
    clock.now += 2.5
    assert watch.waited == 2.5


def test_second_token_is_the_first_choices_to_have_one(clock):
    watch = Stopwatch(clock)
    for moment, choice, count in ((101.0, 0, 1), (101.0, 1, 1), (103.0, 1, 2), (104.0, 0, 1)):
        clock.now = moment
        watch.tokens(choice, count)
    timings = watch.timings(handed_off=True, **WHO)
    assert (timings.time_to_first_token, timings.handoff_gap) == (1.0, 2.0)


def test_mean_inter_token_latency_is_over_all_choices(clock):
    watch = Stopwatch(clock)
    watch.tokens(0, 1)
    watch.tokens(1, 0)
    assert watch.itl_s is None
    clock.now += 4
    watch.tokens(0, 2)
    assert watch.itl_s == 2.0
    watch.tokens(1, 1)
    clock.now += 1
    watch.tokens(1, 1)
    assert watch.itl_s == 5 / 3


def test_the_handoff_and_the_step_after_it(clock):
    watch = Stopwatch(clock)
    for pause in (1.0, 0.5):
        watch.tokens(0, 1)
        assert watch.handoff(0) is None
        clock.now += pause
    watch.tokens(0, 1)
    assert watch.handoff(0) == (1.0, 0.5)
    assert watch.handoff(1) is None


def test_gaps_are_those_between_the_tokens_of_each_choice(clock):
    watch = Stopwatch(clock)
    for moment, choice, count in (
        (101.0, 0, 1),
        (101.01, 1, 2),
        (102.0, 0, 1),
        (103.01, 1, 3),
        (104.0, 0, 0),
    ):
        clock.now = moment
        watch.tokens(choice, count)
    assert len(watch.gaps) == 1 + 1 + 1 + 2
    assert watch.gaps.total == pytest.approx(1.0 + 2.0)
    assert watch.gaps.snapshot().counts[0] == 3  # those that came together
