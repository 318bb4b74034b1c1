"""Work that outlives the request that caused it: giving back what the request held.

Cleanup must not depend on awaits inside a cancelled task, so it is started here, with a
deadline, and a shutdown waits for it. Knows nothing of what the work is.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Background:
    """Tasks on the running loop, each bounded in time. A failed one is logged, never raised."""

    def __init__(self, deadline_s: float = 1.0) -> None:
        self._deadline_s = deadline_s
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Starts `work`; returns at once."""
        task = asyncio.create_task(self._bounded(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Returns once everything that was spawned has ended, in at most its deadline."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _bounded(self, work: Coroutine[Any, Any, object], name: str) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                await work
        except Exception as error:  # noqa: BLE001 - whatever went wrong, leases end by themselves
            log.warning("%s: %s: %s", name, type(error).__name__, error)
