"""Work that several wait for and that is done once."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Flights(Generic[T]):
    """At most one piece of work for each key at a time; who comes meanwhile shares its result.

    One who stops waiting takes nothing from the others. For one event loop; `close` ends what
    runs still.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[T]] = {}

    async def join(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """The result of the work under way for `key`, or of `work`. Raises what it raises."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(_run(work))
            self._running[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _ended(self, key: Hashable, task: "asyncio.Task[T]") -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # it is told to those who wait, if anyone still does

    async def close(self) -> None:
        """Ends what runs; those who wait are cancelled."""
        for task in list(self._running.values()):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _run(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
