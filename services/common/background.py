"""Work that must run to its end although whoever started it may be cancelled.

Giving back what a request held can't depend on awaits inside the request's cancelled task, so
it is started here, and a shutdown waits for it. Knows nothing of what the work is.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

from baton.errors import BatonError

log = logging.getLogger(__name__)

T = TypeVar("T")

_FAULTS = (BatonError, TimeoutError, grpc.RpcError)
"""What others cause; anything else is a bug."""


class Background:
    """Tasks that outlive their callers. Belongs to one event loop.

    Each may take `deadline_s`, for ever where that is None. A failure is logged whether someone
    awaits it or not: a fault of others at `fault_level`, a bug as an error.
    """

    def __init__(
        self, deadline_s: float | None = None, *, fault_level: int = logging.WARNING
    ) -> None:
        self._deadline_s = deadline_s
        self._fault_level = fault_level
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Starts `work`; returns at once. `name` is what the log calls it."""
        task = asyncio.create_task(self._bounded(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`. A cancelled caller stops waiting; the work goes on."""
        return await asyncio.shield(self.spawn(work))

    async def settled(self, patience_s: float | None = None) -> None:
        """Returns once everything that was spawned has ended, or after `patience_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)

    async def close(self, patience_s: float) -> None:
        """Waits for what runs, and cancels what has not ended after `patience_s`."""
        await self.settled(patience_s)
        late = set(self._tasks)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    async def _bounded(self, work: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(self._deadline_s):
            return await work

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        what = f"{task.get_name()}: {type(error).__name__}: {error}"
        if isinstance(error, _FAULTS):
            log.log(self._fault_level, what)
        else:
            log.error(what, exc_info=error)
