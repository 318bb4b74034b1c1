"""Durations for the wire. The way back is `baton.values.seconds`."""

from google.protobuf.duration_pb2 import Duration


def to_duration(seconds: float) -> Duration:
    """So many seconds, to the nanosecond; none where they are below 0."""
    duration = Duration()
    duration.FromNanoseconds(max(0, round(seconds * 1e9)))
    return duration
