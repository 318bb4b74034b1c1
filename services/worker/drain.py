"""How a worker that is told to stop lets go of what it has, so that nothing is lost.

Sequences that decode leave with their KV at once; prompts are finished. The worker's process
then stays until what it published was read by those who go on. Both together take no longer
than its grace. Knows the host; no wire, no fleet, no signals.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from services.worker.host import Host

log = logging.getLogger(__name__)


class Drain:
    """The drain of one host; belongs to its event loop."""

    def __init__(self, host: Host, grace_s: float, failed: asyncio.Event) -> None:
        """`failed`: set when the engine fails, which ends the drain."""
        self._host = host
        self._grace_s = grace_s
        self._failed = failed
        self._deadline: float | None = None
        """Set when the drain began."""

    async def let_go(self) -> None:
        """Refuses what is new, until nothing runs; what has not left by then goes with an error
        that sends it elsewhere."""
        host = self._host
        self._deadline = asyncio.get_running_loop().time() + self._grace_s
        log.info("draining %d runs", host.runs.count)
        host.drain()
        await self._within(host.runs.wait_empty())
        if host.runs.count:
            log.warning("%d runs did not leave within %g s", host.runs.count, self._grace_s)
            host.end_all()

    async def wait_until_read(self) -> None:
        """Waits in what is left of the grace until no one needs this worker's blobs any more;
        not where it didn't drain."""
        if self._deadline is None or self._left_s() <= 0:
            return
        if not await self._within(self._host.transfer.wait_unleased(self._left_s())):
            log.warning("blobs were still to be read when the worker's time was over")

    async def _within(self, work: Coroutine[Any, Any, bool | None]) -> bool:
        """Runs `work` until the deadline or the engine's failure. False where one of those ended
        it, or it said so itself."""
        working = asyncio.create_task(work)
        failing = asyncio.create_task(self._failed.wait())
        try:
            await asyncio.wait(
                {working, failing},
                timeout=max(0.0, self._left_s()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            return working.done() and working.result() is not False
        finally:
            working.cancel()
            failing.cancel()
            await asyncio.wait({working, failing})

    def _left_s(self) -> float:
        assert self._deadline is not None
        return self._deadline - asyncio.get_running_loop().time()
