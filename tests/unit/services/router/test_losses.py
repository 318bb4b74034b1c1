"""Who is gone for good."""

import gc

from services.router.losses import LOST_S, Losses
from tests.support.fleet import worker

ONE, TWO = worker("a"), worker("a", incarnation="two")


def test_a_worker_is_lost_once_it_has_been_missing_for_long_enough():
    losses = Losses()
    event = losses.event(ONE, ONE)
    losses.update({"a": ONE}, 0.0)
    losses.update({}, 10.0)
    losses.update({}, 10.0 + LOST_S - 0.01)
    assert not event.is_set()
    losses.update({}, 10.0 + LOST_S)
    assert event.is_set()


def test_one_that_comes_back_has_all_its_time_again():
    losses = Losses()
    event = losses.event(ONE, ONE)
    losses.update({}, 0.0)
    losses.update({"a": ONE}, LOST_S - 0.1)
    losses.update({}, LOST_S)
    losses.update({}, 2 * LOST_S - 0.1)
    assert not event.is_set()


def test_one_that_was_lost_and_is_back_is_gone_for_nobody_who_asks_then():
    """Whoever saw it go may hold its event for as long as they like."""
    losses = Losses()
    before = losses.event(ONE, ONE)
    losses.update({}, 0.0)
    losses.update({}, LOST_S)
    assert losses.event(ONE, None) is before
    losses.update({"a": ONE}, 2 * LOST_S)
    after = losses.event(ONE, ONE)
    assert (before.is_set(), after.is_set()) == (True, False)
    losses.update({}, 3 * LOST_S)
    losses.update({}, 4 * LOST_S)
    assert after.is_set(), "it can go again"


def test_time_in_which_nothing_was_known_does_not_count():
    losses = Losses()
    event = losses.event(ONE, ONE)
    losses.update({}, 0.0)
    losses.pause()
    losses.update({}, 2 * LOST_S)
    assert not event.is_set()
    losses.update({}, 3 * LOST_S)
    assert event.is_set()


def test_another_incarnation_means_that_the_earlier_one_is_gone():
    losses = Losses()
    event, other = losses.event(ONE, ONE), losses.event(TWO, TWO)
    losses.update({"a": TWO}, 0.0)
    assert event.is_set()
    assert not other.is_set()
    assert losses.event(worker("b"), worker("b", incarnation="two")).is_set()


def test_all_who_ask_share_one_event_and_none_is_kept_for_nobody():
    losses = Losses()
    first, second = losses.event(ONE, ONE), losses.event(ONE, ONE)
    assert first is second
    losses.update({}, 0.0)
    del first, second
    gc.collect()
    assert len(losses) == 0
    losses.update({}, LOST_S)
    assert not losses._missing
