"""Carries what the engine puts out from its thread to the coroutines that wait for it.

One wake-up of the event loop a step, however many sequences the step served. Outputs for
which nobody waits any more have their exported blocks given back at once, so that a cancelled
sequence can't keep blocks pinned. Knows nothing of requests, wires or the fleet.

Everything but `hand_in` belongs to the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from baton.errors import InternalError
from engine.types import BlockRef, SequenceOutput

STALL_S = 300.0
"""An engine that has work and puts nothing out at all for so long is taken to hang."""

ReleaseExports = Callable[[Sequence[BlockRef]], None]
"""Gives exported blocks back to the engine, without waiting."""
OnTokens = Callable[[int], None]
"""Told on the event loop how many tokens of a sequence came, read or not."""
OnDelivered = Callable[[], None]
"""Told on the event loop after each step's outputs are in their streams."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """When a step was, by the monotonic clock."""

    began_s: float
    ended_s: float


class SequenceStream:
    """What the engine puts out for one sequence, in order; for one reader."""

    def __init__(self, stall_s: float, silent_s: Callable[[], float], on_tokens: OnTokens) -> None:
        self._stall_s = stall_s
        self._on_tokens = on_tokens
        self._silent_s = silent_s
        self._outputs: deque[tuple[SequenceOutput, StepTime | None]] = deque()
        self.step: StepTime | None = None
        """Of the output that was read last; None where no step brought it."""
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    def put(self, output: SequenceOutput, step: StepTime | None = None) -> None:
        """Appends an output, which `step` brought."""
        self._outputs.append((output, step))
        self._changed.set()
        self._on_tokens(len(output.tokens))

    def fail(self, error: Exception) -> None:
        """Makes the next read raise `error`, even if outputs are left. The first error stays."""
        if self._failure is None:
            self._failure = error
        self._changed.set()

    async def next(self) -> SequenceOutput:
        """The next output. Raises what `fail` was given, and InternalError on a stall."""
        while self._failure is None:
            if self._outputs:
                output, self.step = self._outputs.popleft()
                return output
            self._changed.clear()
            try:
                async with asyncio.timeout(self._stall_s):
                    await self._changed.wait()
            except TimeoutError:
                if self._silent_s() >= self._stall_s:
                    self.fail(InternalError(f"the engine made no step for {self._stall_s:g} s"))
        raise self._failure

    def drain(self) -> list[BlockRef]:
        """Exports of the outputs that were not read; they are forgotten."""
        left = [block for output, _ in self._outputs for block in output.exports]
        self._outputs.clear()
        return left


class Outbox:
    """The open streams of all sequences, by the engine's id of each."""

    def __init__(
        self,
        release: ReleaseExports,
        stall_s: float = STALL_S,
        on_delivered: OnDelivered = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._release = release
        self._stall_s = stall_s
        self._on_delivered = on_delivered
        self._streams: dict[str, SequenceStream] = {}
        self._delivered_at = self._loop.time()

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, key: str, on_tokens: OnTokens = lambda _: None) -> SequenceStream:
        """A stream for the sequence `key`; `close` must follow."""
        if key in self._streams:
            raise InternalError(f"sequence {key} has a stream already")
        stream = self._streams[key] = SequenceStream(self._stall_s, self._silent_s, on_tokens)
        return stream

    def close(self, key: str) -> None:
        """Ends a stream; gives back what its reader did not take."""
        left = self._streams.pop(key).drain()
        if left:
            self._release(left)

    def hand_in(self, outputs: list[SequenceOutput], step: StepTime | None = None) -> None:
        """Called on the engine's thread after every step."""
        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._deliver, outputs, step)

    def _silent_s(self) -> float:
        return self._loop.time() - self._delivered_at

    def _deliver(self, outputs: list[SequenceOutput], step: StepTime | None) -> None:
        self._delivered_at = self._loop.time()
        orphans: list[BlockRef] = []
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                orphans.extend(output.exports)
            else:
                stream.put(output, step)
        if orphans:
            self._release(orphans)
        self._on_delivered()
