"""Tallies: what falls into which bucket."""

import itertools
import time

import pytest

from services.common.telemetry.tally import SECONDS_BUCKETS, Tallies, Tally


def test_bounds_belong_to_the_bucket_below():
    tally = Tally((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        tally.observe(value)
    seen = tally.snapshot()
    assert seen.counts == (2, 2, 1)
    assert seen.total == 14.0
    assert len(tally) == 5


def test_counts_many_at_once_and_other_tallies():
    tally, other = Tally((1.0,)), Tally((1.0,))
    tally.observe(0.5, count=3)
    other.observe(5.0, count=2)
    tally.add(other)
    assert tally.snapshot().counts == (3, 2)
    assert tally.total == pytest.approx(11.5)


def test_keeps_the_last_trace_of_each_bucket():
    tally = Tally((1.0,))
    tally.observe(0.1, b"\x01" * 16)
    tally.observe(0.2, b"\x02" * 16)
    tally.observe(0.3)
    low, high = tally.snapshot().examples
    assert high is None
    assert (low.trace_id, low.value) == ("02" * 16, 0.2)
    assert abs(low.at_s - time.time()) < 60


def test_a_snapshot_does_not_change():
    tally = Tally((1.0,))
    before = tally.snapshot()
    tally.observe(0.5)
    assert sum(before.counts) == 0


def test_one_tally_for_each_set_of_labels():
    tallies = Tallies((1.0,))
    tallies["a", "x"].observe(1)
    tallies["a", "x"].observe(1)
    tallies["b", "x"].observe(1)
    assert {labels: len(tally) for labels, tally in tallies} == {("a", "x"): 2, ("b", "x"): 1}


def test_seconds_suit_a_millisecond_and_a_minute():
    """No more than a factor of 2.5 from bound to bound over the whole range."""
    assert (SECONDS_BUCKETS[0], SECONDS_BUCKETS[-1], len(SECONDS_BUCKETS)) == (0.0005, 120.0, 20)
    steps = [b / a for a, b in itertools.pairwise(SECONDS_BUCKETS)]
    assert all(1.0 < step <= 2.5 for step in steps)
