"""Holds a signal back where it comes too often: at once, then at most once a period.

The last one is never lost. Knows only the event loop's clock.
"""

import asyncio
from collections.abc import Callable


class Pokes:
    """Passes `poke` on to `target`, at most once in `period_s`. Belongs to one event loop."""

    def __init__(self, target: Callable[[], None], period_s: float) -> None:
        self._target = target
        self._period_s = period_s
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.time()
        self._later: asyncio.TimerHandle | None = None

    def poke(self) -> None:
        """Calls the target now, or at the period's end where it was called within it."""
        if self._later is not None:
            return
        now = self._loop.time()
        if now >= self._next:
            self._pass()
        else:
            self._later = self._loop.call_at(self._next, self._pass)

    def close(self) -> None:
        """Forgets a call that is held back."""
        if self._later is not None:
            self._later.cancel()

    def _pass(self) -> None:
        self._later = None
        self._next = self._loop.time() + self._period_s
        self._target()
