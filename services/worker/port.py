"""The event loop's side of the engine's thread.

Every method hands a call to that thread, where it runs between two steps in the order of
arrival. A call that was handed over runs even if its caller is cancelled meanwhile: who needs
its effect undone hands over `cancel` after it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from baton.errors import InternalError
from baton.naming import BlobName
from engine.engine import Engine
from engine.errors import LoopStopped
from engine.kv.changes import CacheChanges
from engine.loop import EngineLoop
from engine.peaks import Peaks, measure_peaks
from engine.steps import EngineLoad, StepReport
from engine.types import Admission, BlockRef, EngineStatus, Request, SequenceOutput
from engine.warmup import warm_up
from services.common.blob_log import BlobLog
from services.worker.outbox import OnDelivered, Outbox, StepTime

log = logging.getLogger(__name__)

T = TypeVar("T")

CALL_S = 300.0
"""Longest wait for a call's turn: a step of a big model on a slow CPU takes long."""
STOP_S = 30.0
INLINE_NAMES_TOKENS = 2048
"""Longer prompts have their names hashed on another thread than the event loop's."""

OnEngineFailure = Callable[[BaseException], None]
"""Told, on the event loop, that the engine's thread ended with an error."""
OnStep = Callable[[StepReport], None]
"""Told of every step, on the engine's thread."""


class EnginePort:
    """An engine on its thread, and the streams that come out of it."""

    def __init__(
        self,
        engine: Engine,
        on_failure: OnEngineFailure,
        cores: set[int] | None = None,
        *,
        on_step: OnStep | None = None,
        on_delivered: OnDelivered = lambda: None,
    ) -> None:
        """`on_delivered`: told on the event loop after each step that put something out."""
        self._engine = engine
        self._event_loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._on_step = on_step
        self._step: StepTime | None = None
        """The step that was just run; belongs to the engine's thread."""
        self.outbox = Outbox(self.release_exports, on_delivered=on_delivered)
        self.blobs = BlobLog()
        """Full blocks of the engine's index group."""
        self._thread = EngineLoop(
            engine,
            self._outputs,
            self._failed,
            cores,
            on_step=self._stepped,
            on_cache=self._cache_changed,
        )
        self.layout = engine.layout
        self.limits = engine.limits
        self.capacity = engine.capacity
        self.config = engine.config
        self.index_group = engine.index_group

    def start(self) -> None:
        """Starts the thread."""
        self.blobs.reset(self._engine.cache_names())
        self._thread.start()

    async def warm_up(self, budget_s: float) -> list[StepReport]:
        """Measures steps, before the first request; none where `budget_s` is 0."""
        return await self._call(lambda engine: warm_up(engine, budget_s)) if budget_s > 0 else []

    async def measure_peaks(self) -> Peaks:
        """What the device can do, with the engine's threads; before the first request."""
        return await self._call(
            lambda engine: measure_peaks(engine.config.dtype, engine.config.device)
        )

    async def stop(self) -> None:
        """Ends the thread after its current step, or leaves it to the process's end."""
        try:
            await asyncio.to_thread(self._thread.stop, STOP_S)
        except TimeoutError as error:
            log.warning("%s", error)

    async def names(self, request: Request) -> tuple[BlobName, ...]:
        """Every blob that could serve a prefix hit of `request`."""
        if len(request.prompt) <= INLINE_NAMES_TOKENS:
            return self._engine.names(request)
        return await asyncio.to_thread(self._engine.names, request)

    async def admit(self, request: Request, available: Collection[BlobName]) -> Admission:
        """Sets aside room. Raises engine.errors.NoRoom or RequestError."""
        return await self._call(lambda engine: engine.admit(request, available))

    async def start_sequence(self, key: str, filled: Collection[BlobName]) -> int:
        """Lets an admitted sequence run; the number of its tokens that need no computing."""
        return await self._call(lambda engine: engine.start(key, filled))

    async def hand_over(self, key: str) -> bool:
        """Lets a sequence leave with its KV: its last output says HANDOVER. False where it is
        not here any more, or the engine isn't."""
        with suppress(LoopStopped):
            return await self._call(lambda engine: engine.hand_over(key))
        return False

    async def cancel(self, key: str) -> None:
        """Frees what a sequence holds, in any phase; nothing when it ended, or the engine did."""
        with suppress(LoopStopped):
            await self._call(lambda engine: engine.cancel(key))

    def release_exports(self, blocks: Sequence[BlockRef]) -> None:
        """Gives exported blocks back; does not wait."""
        released = self._thread.call(lambda engine: engine.release_exports(blocks))
        released.add_done_callback(_log_failure)

    def block_view(self, block: BlockRef) -> memoryview:
        """The bytes of a block that the caller holds (an export, or one to fill)."""
        return self._engine.block_view(block.group, block.block)

    @property
    def load(self) -> EngineLoad:
        """What the engine has before it, as of its last step or call."""
        return self._engine.current_load

    @property
    def busy_s(self) -> float:
        """Seconds that the engine's thread has been at its current step or call; 0 without one."""
        return self._thread.busy_s

    async def status(self) -> EngineStatus:
        """What the engine holds and has done."""
        return await self._call(lambda engine: engine.status())

    async def check_integrity(self) -> None:
        """Raises engine.errors.IntegrityError naming what is broken."""
        await self._call(lambda engine: engine.check_integrity())

    async def _call(self, function: Callable[[Engine], T]) -> T:
        future = asyncio.wrap_future(self._thread.call(function))
        try:
            async with asyncio.timeout(CALL_S):
                return await asyncio.shield(future)
        except TimeoutError as error:
            raise InternalError(f"the engine did not answer within {CALL_S:g} s") from error

    def _outputs(self, outputs: list[SequenceOutput]) -> None:
        step, self._step = self._step, None
        self.outbox.hand_in(outputs, step)

    def _stepped(self, report: StepReport) -> None:
        now = time.monotonic()
        self._step = StepTime(now - report.seconds, now)
        if self._on_step is not None:
            self._on_step(report)

    def _cache_changed(self, changes: CacheChanges) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody watches any more
            self._event_loop.call_soon_threadsafe(self.blobs.change, changes.added, changes.removed)

    def _failed(self, error: BaseException) -> None:
        log.error("the engine failed", exc_info=error)
        with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            self._event_loop.call_soon_threadsafe(self._on_failure, error)


def _log_failure(future: Future[None]) -> None:
    error = future.exception()
    if error is not None and not isinstance(error, LoopStopped):
        log.error("giving exported blocks back failed", exc_info=error)
