"""Work that must run to its end although the call that started it may be cancelled."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]
"""Has deadlines of its own."""


class Background:
    """Tasks that outlive their callers."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Work) -> asyncio.Task[None]:
        """Starts `work`; a failure that nobody awaits is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def complete(self, work: Work) -> None:
        """Awaits `work`. A cancelled caller stops waiting; the work goes on."""
        await asyncio.shield(self.spawn(work))

    async def wait_empty(self, deadline_s: float) -> None:
        """Waits until nothing is left, at most `deadline_s`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=deadline_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("work in the background failed", exc_info=task.exception())
