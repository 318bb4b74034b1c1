"""When a caller stops waiting."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from baton.errors import DeadlineExceeded


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, or never."""

    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        """`seconds` from now; None is never."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    def remaining(self, at_most: float | None = None) -> float | None:
        """Seconds left, never negative, never more than `at_most`; None is for ever."""
        if self.at is None:
            return at_most
        left = max(0.0, self.at - time.monotonic())
        return left if at_most is None else min(left, at_most)

    def passed(self, margin_s: float = 0.0) -> bool:
        """Whether less than `margin_s` is left."""
        return self.at is not None and time.monotonic() >= self.at - margin_s

    @asynccontextmanager
    async def bounding(self, phase: str) -> AsyncIterator[None]:
        """Raises DeadlineExceeded, which names the phase, where the block outlasts the deadline."""
        scope = asyncio.timeout(self.remaining())
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise DeadlineExceeded(f"the request's deadline passed {phase}") from None
