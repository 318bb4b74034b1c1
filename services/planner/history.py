"""What a planner remembers: the load of past seasons, and how long workers took to start.

A value: it can be kept elsewhere and given back, so that a restart or another planner goes on
from it. Knows no clock.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from baton.policy.fleet import Role
from baton.policy.sizing import NAMES, Traffic

SEASONS = 4
"""Seasons that are kept."""
MAX_BUCKETS = 8192
_WIDTH = len(NAMES)
_FORMAT = 1
_MAX_BYTES = 4 * MAX_BUCKETS * (_WIDTH + 8)
"""Of what is kept, not compressed."""
_MOST = 1e37
"""Most that a value is kept as: it has 32 bits."""


@dataclass(frozen=True, slots=True)
class History:
    """The load in pieces of `bucket_s`, by the number of the piece since 1970."""

    bucket_s: float
    buckets: Mapping[int, Traffic] = field(default_factory=dict)
    """Those that were seen for long enough; the oldest first."""
    cold_start_s: Mapping[Role, float] = field(default_factory=dict)
    """Measured; a moving mean."""

    def with_bucket(self, number: int, traffic: Traffic, keep: int) -> "History":
        """One piece more; pieces that are older than `keep` of them go. One that is there
        already, since the clock was set back, is replaced."""
        oldest = number - min(keep, MAX_BUCKETS)
        kept = {at: one for at, one in self.buckets.items() if oldest < at < number}
        return replace(self, buckets=kept | {number: traffic})

    def with_cold_start(self, role: Role, seconds: float) -> "History":
        """Another mean for a role."""
        return replace(self, cold_start_s={**self.cold_start_s, role: seconds})

    def to_bytes(self) -> bytes:
        """About 25 bytes a piece, compressed."""
        head = {
            "format": _FORMAT,
            "bucket_s": self.bucket_s,
            "cold_start_s": {role.value: one for role, one in self.cold_start_s.items()},
            "buckets": list(self.buckets),
        }
        values = [min(value, _MOST) for one in self.buckets.values() for value in one.values()]
        return zlib.compress(
            json.dumps(head).encode() + b"\n" + struct.pack(f"<{len(values)}f", *values)
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "History":
        """What `to_bytes` wrote. Raises ValueError for anything else."""
        try:
            inflate = zlib.decompressobj()
            head_json, _, packed = inflate.decompress(data, _MAX_BYTES).partition(b"\n")
            if not inflate.eof:
                raise ValueError("it is cut off, or too long")
            head = json.loads(head_json)
            if head["format"] != _FORMAT:
                raise ValueError(f"format {head['format']!r}")
            numbers = [int(number) for number in head["buckets"]]
            values = struct.unpack(f"<{_WIDTH * len(numbers)}f", packed)
            history = cls(
                float(head["bucket_s"]),
                {
                    number: Traffic(*values[_WIDTH * index : _WIDTH * (index + 1)])
                    for index, number in enumerate(numbers)
                },
                {Role(name): float(one) for name, one in head["cold_start_s"].items()},
            )
            history._check()
        except (
            *(zlib.error, struct.error, LookupError, TypeError, ValueError, AttributeError),
            *(ArithmeticError, RecursionError),
        ) as error:
            raise ValueError(f"not a planner's history: {error!r}") from error
        return history

    def _check(self) -> None:
        """Raises ValueError for what no planner measures: forecasts would fail for ever."""
        numbers = list(self.buckets)
        if numbers != sorted(numbers) or (numbers and numbers[-1] - numbers[0] > MAX_BUCKETS):
            raise ValueError("its pieces are not in order, or too far apart")
        measured = [self.bucket_s, *self.cold_start_s.values()]
        measured += [value for one in self.buckets.values() for value in one.values()]
        if not all(0 <= value < math.inf for value in measured):
            raise ValueError("it has values that are not from 0 on")
