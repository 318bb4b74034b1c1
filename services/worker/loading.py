"""Loads the engine on a thread while the process stays responsive, and shows how far it is.

Progress goes into the debug log as lines `progress DONE/TOTAL` (bytes, at most ten a second)
and, where a file is named, into that file as `DONE TOTAL`, replaced atomically.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from engine.config import EngineConfig
from engine.engine import Engine

log = logging.getLogger(__name__)

LoadEngine = Callable[[Callable[[int, int], None]], Engine]
"""Loads an engine, reporting bytes done and bytes in all."""

PROGRESS_PERIOD_S = 0.1


class LoadStopped(Exception):
    """The process was told to stop while it loaded."""


class Progress:
    """Reports bytes done, not too often; raises LoadStopped once told to."""

    def __init__(self, file: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = Path(file) if file else None
        self._clock = clock
        self._reported = float("-inf")
        self.stopped = False

    def __call__(self, done: int, total: int) -> None:
        if self.stopped:
            raise LoadStopped
        now = self._clock()
        if done < total and now - self._reported < PROGRESS_PERIOD_S:
            return
        self._reported = now
        log.debug("progress %d/%d", done, total)
        if self._file is not None:
            partial = self._file.with_suffix(f".{os.getpid()}")
            partial.write_text(f"{done} {total}")
            partial.replace(self._file)


def loader(path: Path, config: EngineConfig) -> LoadEngine:
    """Loads the model at `path`."""
    return lambda progress: Engine.load(path, config, progress)


async def load_engine(load: LoadEngine, progress: Progress, stop: asyncio.Event) -> Engine:
    """The loaded engine. Raises LoadStopped soon after `stop` is set, and what `load` raises."""
    loading = asyncio.ensure_future(asyncio.to_thread(load, progress))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        progress.stopped = stop.is_set()
        return await loading
    finally:
        progress.stopped = True
        stopping.cancel()
