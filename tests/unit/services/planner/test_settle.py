"""Pools shrink late, and learn from alarms."""

from hypothesis import given
from hypothesis import strategies as st

from services.planner.config import PlannerConfig
from services.planner.lesson import Lesson
from services.planner.settle import Settler

CONFIG = PlannerConfig()


def test_a_pool_grows_at_once_and_shrinks_after_the_time_is_over():
    settler = Settler(CONFIG)
    assert settler.hold(0, 2, 10) == (10, "")
    assert settler.hold(100, 10, 3)[0] == 10
    assert settler.hold(290, 10, 3)[0] == 10
    assert settler.hold(301, 10, 3) == (8, "")


def test_steps_down_are_a_period_apart():
    settler = Settler(CONFIG)
    settler.hold(0, 5, 1)
    assert settler.hold(300, 5, 1) == (4, "")
    settler.shrunk(300)
    assert settler.hold(330, 4, 1)[0] == 4
    assert settler.hold(360, 4, 1) == (3, "")


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_it_never_goes_below_any_need_of_the_window(needs):
    settler = Settler(CONFIG)
    for look, need in enumerate(needs):
        held, _ = settler.hold(30.0 * look, 20, need)
        assert held >= max(needs[max(0, look - 10) : look + 1])


def test_a_lesson_that_was_forgotten_too_early_holds_for_longer():
    lesson = Lesson(CONFIG)
    assert lesson.extra(0.0) == 0
    lesson.learn(10.0, 2)
    assert lesson.extra(600.0) == 2
    assert lesson.extra(611.0) == 0
    lesson.learn(700.0, 1)
    assert lesson.extra(1899.0) == 1
    assert lesson.extra(1901.0) == 0
    lesson.learn(10_000.0, 1)
    assert lesson.extra(10_601.0) == 0
