"""Waiting for one worker, as long as it lives.

A worker that hangs keeps its connections: nothing in a call tells that it is gone, but the
fleet's other members may know.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from baton import errors
from baton.policy.fleet import Worker


class Vigil:
    """Bounds the waits of one call to `worker`; `lost` is set once that is known to be gone.

    Entered for as long as the call is open. One wait at a time.
    """

    def __init__(self, worker: Worker, lost: asyncio.Event) -> None:
        self._worker = worker
        self._lost = lost
        self._wait: asyncio.Timeout | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    @asynccontextmanager
    async def waiting(self, patience_s: float | None = None) -> AsyncIterator[None]:
        """Raises Unavailable where the block takes longer than `patience_s`, or as soon as the
        worker is gone."""
        if self._lost.is_set():
            raise self._gone()
        wait = asyncio.timeout(patience_s)
        try:
            async with wait:
                self._wait = wait
                yield
        except TimeoutError:
            if not wait.expired():
                raise
            if self._lost.is_set():
                raise self._gone() from None
            raise errors.Unavailable(
                f"worker {self._worker.worker_id} was silent for {patience_s:g} s"
            ) from None
        finally:
            self._wait = None

    async def _watch(self) -> None:
        await self._lost.wait()
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    def _gone(self) -> errors.Unavailable:
        return errors.Unavailable(f"worker {self._worker.worker_id} is gone")
