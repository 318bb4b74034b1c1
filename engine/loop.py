"""The engine on a thread of its own. Knows threads and time; no wire and no event loop.

Between two steps the thread serves calls, so that whatever touches the engine runs there.
Without work it sleeps until a call comes.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from engine.engine import Engine
from engine.errors import LoopStopped
from engine.kv.changes import CacheChanges
from engine.steps import StepReport
from engine.types import SequenceOutput

T = TypeVar("T")

OnOutputs = Callable[[list[SequenceOutput]], None]
"""Takes all outputs of one step, on the engine's thread. Must not block."""
OnStep = Callable[[StepReport], None]
"""Takes what a step computed and how long it took, before its outputs, on the engine's thread.
Must not block."""
OnCache = Callable[[CacheChanges], None]
"""Takes how `Engine.cache_names` changed, on the engine's thread, after the step's outputs or
the call that changed it. Must not block."""
OnFailure = Callable[[BaseException], None]
"""Takes what ended the loop, on the engine's thread."""


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    """A function to run on the engine, and who waits for it."""

    fn: Callable[[Engine], T]
    future: Future[T]

    def run(self, engine: Engine) -> None:
        """What `fn` raises is the future's; the loop goes on."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.fn(engine)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller gets it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def refuse(self, error: LoopStopped) -> None:
        """Fail the future."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class EngineLoop:
    """Runs an engine until `stop`, or until a step fails. `call`, `stop` and `busy_s` are
    thread-safe."""

    def __init__(
        self,
        engine: Engine,
        on_outputs: OnOutputs,
        on_failure: OnFailure,
        core: set[int] | None = None,
        *,
        on_step: OnStep | None = None,
        on_cache: OnCache | None = None,
    ) -> None:
        """`core`: the CPU cores that the thread, and compute threads it starts, keep to."""
        self._engine = engine
        self._on_outputs = on_outputs
        self._on_failure = on_failure
        self._on_step = on_step
        self._on_cache = on_cache
        self._core = core
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        """None is the wish to stop."""
        self._lock = threading.Lock()
        self._refusal: LoopStopped | None = LoopStopped("the engine's thread was not started")
        """Set while no calls are taken. Changed, and calls are queued, under the lock, so that
        none is queued and forgotten."""
        self._busy_since: float | None = None
        """When the step or call began that runs; None without work."""
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        with self._lock:
            self._refusal = None
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread after the step that it is in; fails the calls that are not served.

        Raises TimeoutError when that takes longer than `timeout` seconds.
        """
        if self._thread.ident is None:
            return
        self._calls.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine's thread did not end within {timeout} seconds")

    def call(self, fn: Callable[[Engine], T]) -> Future[T]:
        """Run `fn` between two steps. The future fails with what it raises, or LoopStopped."""
        call: _Call[T] = _Call(fn, Future())
        with self._lock:
            refusal = self._refusal
            if refusal is None:
                self._calls.put(call)
        if refusal is not None:
            call.refuse(refusal)
        return call.future

    @property
    def busy_s(self) -> float:
        """Seconds that the step or call takes already that runs; 0 without work."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def _main(self) -> None:
        try:
            self._prepare_thread()
            while self._serve_calls():
                if self._engine.has_work:
                    self._step()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the engine
            self._close(LoopStopped(f"the engine failed: {error!r}"))
            self._on_failure(error)
        else:
            self._close(LoopStopped("the engine's thread was stopped"))

    def _step(self) -> None:
        self._busy_since = time.monotonic()
        began = time.perf_counter()
        outputs = self._engine.step()
        seconds = time.perf_counter() - began
        shape = self._engine.last_shape
        if self._on_step is not None and shape is not None:
            self._on_step(StepReport(shape, seconds))
        if outputs:
            self._on_outputs(outputs)
        self._tell_cache()

    def _tell_cache(self) -> None:
        if self._on_cache is not None:
            changes = self._engine.take_cache_changes()
            if changes:
                self._on_cache(changes)

    def _prepare_thread(self) -> None:
        if self._core is not None:
            os.sched_setaffinity(0, self._core)
        if self._engine.config.threads is not None:
            # OpenMP keeps this number for each thread that computes.
            torch.set_num_threads(self._engine.config.threads)

    def _serve_calls(self) -> bool:
        """Serve what waits; without work, wait for a call. False at the wish to stop."""
        while True:
            idle = not self._engine.has_work
            if idle:
                self._busy_since = None
            try:
                call = self._calls.get(block=idle)
            except queue.Empty:
                return True
            self._busy_since = time.monotonic()
            if call is None:
                return False
            call.run(self._engine)
            self._tell_cache()

    def _close(self, refusal: LoopStopped) -> None:
        self._busy_since = None
        with self._lock:
            self._refusal = refusal
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None:
                call.refuse(refusal)
