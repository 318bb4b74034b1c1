"""Durations on the wire."""

from baton.values import seconds
from services.common.durations import to_duration


def test_durations_are_exact_to_the_nanosecond_and_never_negative():
    assert to_duration(1.000_000_001).ToNanoseconds() == 1_000_000_001
    assert seconds(to_duration(0.25)) == 0.25
    assert to_duration(-0.5).ToNanoseconds() == 0
