"""The budget that keeps retries a fraction of requests, so that they can't multiply an overload.

One for the whole fleet, in Redis; while that is away, this router's own. Knows no requests.
"""

from baton.errors import BatonError
from services.common.fleet.store import FleetStore


class RetryBudget:
    """Not thread-safe; one event loop."""

    def __init__(self, store: FleetStore, ratio: float, reserve: float) -> None:
        """Each request earns `ratio` of a retry; at most `reserve` are saved, and are there from
        the start."""
        self._store = store
        self.ratio = ratio
        self._reserve = reserve
        self._own = reserve

    def earn(self) -> None:
        """Counts a request of this router; its ticket does so for the fleet."""
        self._own = min(self._reserve, self._own + self.ratio)

    async def spend(self) -> bool:
        """Takes one retry, if there is one. Raises nothing but its caller's cancel."""
        try:
            return await self._store.spend_retry(self._reserve)
        except BatonError:
            if self._own < 1:
                return False
            self._own -= 1
            return True
