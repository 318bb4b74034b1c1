"""A planner's history in Redis, so that the next planner knows the seasons.

What is there is looked at before anything is written: a planner that has just begun must not
write its empty history over a rich one.
"""

import logging

from baton.errors import BatonError
from services.common.fleet.store import FleetStore
from services.planner.history import History
from services.planner.planner import Planner

log = logging.getLogger(__name__)

NAME = "planner-history"


class Memory:
    """Of one planner. Raises nothing: Redis may be away, and comes back."""

    def __init__(self, store: FleetStore, planner: Planner) -> None:
        self._store = store
        self._planner = planner
        self._recalled = False
        self._kept: History | None = None

    async def recall(self) -> None:
        """Gives the planner what was kept, once."""
        if self._recalled:
            return
        try:
            value = await self._store.kept(NAME)
        except BatonError as error:
            log.warning("what earlier planners knew can't be read now: %s", error)
            return
        self._recalled = True
        if value is None:
            return
        try:
            self._planner.restore(History.from_bytes(value))
        except ValueError as error:
            log.warning("beginning anew: %s", error)
            return
        self._kept = self._planner.history
        log.info("goes on from the history of earlier planners")

    async def keep(self) -> None:
        """Writes the history where it has changed."""
        history = self._planner.history
        if not self._recalled or history is self._kept:
            return
        try:
            await self._store.keep(NAME, history.to_bytes())
        except BatonError as error:
            log.warning("the history is not kept now: %s", error)
            return
        self._kept = history
