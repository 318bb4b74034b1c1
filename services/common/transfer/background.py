"""Calls that must go on when their caller is cancelled."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from baton import errors

log = logging.getLogger(__name__)

T = TypeVar("T")


class Background:
    """Tasks that nobody need wait for. Belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` to its end, whoever waits for it or not."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            level = logging.DEBUG if isinstance(error, errors.BatonError) else logging.ERROR
            log.log(level, "a call to the transfer service failed", exc_info=error)

    async def close(self, patience_s: float) -> None:
        """Waits for what runs, and cancels what is not done after `patience_s`."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
