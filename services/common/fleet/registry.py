"""A worker's presence in the fleet: heartbeats for as long as its process serves.

Knows nothing of engines: `describe` says what the worker holds at this moment.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from baton.errors import BatonError
from baton.policy.fleet import Worker
from services.common.fleet.store import FleetStore

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5

Describe = Callable[[], Worker]
"""The worker as it is now. Called on the event loop, at each heartbeat."""


class Registry:
    """Keeps a worker registered. Redis may be away or come back empty: the next heartbeat
    registers the worker again. Not thread-safe; belongs to one event loop."""

    def __init__(
        self, store: FleetStore, describe: Describe, period_s: float = HEARTBEAT_S
    ) -> None:
        self._store = store
        self._describe = describe
        self._period_s = period_s
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._told: Worker | None = None
        self._closing = False
        self._failing = False

    async def start(self) -> None:
        """Sends the first heartbeat and goes on in the background. Never raises."""
        await self._beat()
        self._task = asyncio.create_task(self._run())

    def poke(self) -> None:
        """Sends a heartbeat at once: room was taken or freed."""
        self._poked.set()

    async def close(self) -> None:
        """Stops and deregisters, within the store's deadline. Never raises. Does not close
        the store."""
        self._closing = True
        self._poked.set()
        if self._task is not None:
            await asyncio.wait({self._task})
        if self._told is not None:
            with contextlib.suppress(BatonError):
                await self._store.deregister(self._told.worker_id, self._told.incarnation)

    async def _run(self) -> None:
        """Ends between heartbeats only: one under way could outlive the deregistration."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._poked.wait()
            self._poked.clear()
            if self._closing:
                return
            await self._beat()

    async def _beat(self) -> None:
        try:
            worker = self._told = self._describe()
            if await self._store.heartbeat(worker, self._period_s):
                log.info("registered as %s (%s)", worker.worker_id, worker.incarnation)
            self._failing = False
        except Exception as error:
            if not self._failing:
                log.warning("heartbeat failed, trying on: %s", error, exc_info=_bug(error))
            self._failing = True


def _bug(error: Exception) -> bool:
    return not isinstance(error, BatonError)
