"""Whether and when to try again. Knows nothing of what is tried."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from baton.errors import BatonError, Exhausted, LostRace, Unavailable

_RETRY_AFTER_S = 1.0

Pause = Callable[[float], Awaitable[None]]
"""Waits some seconds."""


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How often and how fast."""

    prefill_attempts: int = 4
    decode_attempts: int = 6
    base_s: float = 0.05
    """Longest pause after the first failure; doubles with every further one."""
    cap_s: float = 1.0
    """Longest pause."""
    room_s: float = 60.0
    """How long a choice waits for a decode worker while none of its request runs."""


class Retries:
    """Limits of one request's attempts, and the pauses between them."""

    def __init__(self, limits: RetryLimits, pause: Pause = asyncio.sleep) -> None:
        self.limits = limits
        self._pause = pause

    async def pause(self, failures: int) -> None:
        """Waits a random time after the `failures`-th failure, counted from 1."""
        longest = min(self.limits.cap_s, self.limits.base_s * 2 ** (failures - 1))
        await self._pause(random.uniform(0, longest))


def is_retryable(error: BatonError) -> bool:
    """Whether another worker may succeed where this error came from."""
    return isinstance(error, Unavailable | LostRace)


def given_up(error: BatonError) -> BatonError:
    """What a client is told after the last attempt: a race lost too often is a lack of room."""
    if isinstance(error, LostRace):
        return Exhausted(error.message, reason="NO_ROOM", retry_after=_RETRY_AFTER_S)
    return error
