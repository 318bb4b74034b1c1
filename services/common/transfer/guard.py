"""Stands before the calls to a service that may hang: silence ends them, and is remembered.

While calls wait and the service says nothing, it is probed; where the probe gets no answer
either, the breaker opens: calls under way end, new ones fail at once, and probing goes on until
there is an answer. Where a call's own failure opens it, calls under way end only after a probe
failed, too: it may be this process that was late. Knows no messages: a probe is any cheap call.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from baton import errors
from services.common.transfer.blobs import TransferStats
from services.common.transfer.breaker import QUICK_S, SILENCE_S, SILENT_ERRORS, Breaker

Probe = Callable[[float], Awaitable[None]]
"""Asks the service for anything; takes a deadline in seconds. Raises BatonError."""

_AGAIN_S = 0.05


class Guard:
    """Guards the calls to one service. Belongs to one event loop, which runs already.

    It has a task only while calls wait or the breaker is open.
    """

    def __init__(self, probe: Probe, stats: TransferStats) -> None:
        self._probe = probe
        self._stats = stats
        self._clock = asyncio.get_running_loop().time
        self._breaker = Breaker(self._clock)
        self._calls: dict[asyncio.Timeout, float] = {}  # when each began, the oldest first
        self._watcher: asyncio.Task[None] | None = None
        self._turned = asyncio.Event()
        self._usable = asyncio.Event()
        self._usable.set()
        self._hurried = False

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once now."""
        return self._breaker.is_open

    @asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """Put around each wait for an answer, in one task.

        Raises Unavailable at once while the breaker is open, and DeadlineExceeded where the
        service falls silent meanwhile.
        """
        self._watch()
        if self._breaker.is_open:
            raise errors.Unavailable("the transfer service is silent", reason="SERVICE_SILENT")
        began = self._clock()
        try:
            async with asyncio.timeout(None) as call:
                self._calls[call] = began
                try:
                    yield
                finally:
                    self._calls.pop(call, None)
        except TimeoutError as error:
            message = "the transfer service fell silent"
            raise errors.DeadlineExceeded(message, reason="SERVICE_SILENT") from error
        except errors.BatonError as error:
            self._note(began, error)
            raise
        self.heard()

    def heard(self) -> None:
        """Takes a sign of life from elsewhere."""
        was_open = self._breaker.is_open
        self._breaker.heard()
        if was_open:
            self._turn()

    async def persist(self, call: Callable[[], Awaitable[None]], patience_s: float) -> bool:
        """Makes a guarded call that does no harm twice until it is answered; whether it was.

        Waits while the breaker is open, for `patience_s` at most in all.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while True:
                    await self._usable.wait()
                    if self._breaker.is_open:  # and nobody waits for its closing any more
                        return False
                    try:
                        await call()
                    except SILENT_ERRORS:
                        if self._hurried:
                            return False
                        await asyncio.sleep(_AGAIN_S)
                    except errors.BatonError:
                        return True
                    else:
                        return True
        return False

    def hurry(self) -> None:
        """Lets nobody wait for an open breaker any more."""
        self._hurried = True
        self._usable.set()

    async def close(self) -> None:
        """Ends the probing; call it when no calls are made any more. Idempotent."""
        self.hurry()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])

    def _note(self, began: float, error: errors.BatonError) -> None:
        was_open = self._breaker.is_open
        self._breaker.failed(began, error)
        if self._breaker.is_open != was_open:
            self._turn()

    def _turn(self) -> None:
        """The breaker has just opened or closed."""
        self._turned.set()
        if not self._breaker.is_open:
            self._usable.set()
            return
        self._stats.breaker_opened += 1
        if not self._hurried:
            self._usable.clear()

    def _end_calls(self) -> None:
        calls, self._calls = self._calls, {}
        for call in calls:
            call.reschedule(self._clock())

    def _watch(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._keep_watch())

    async def _keep_watch(self) -> None:
        while self._calls or self._breaker.is_open:
            if self._breaker.is_open:
                await self._probe_open()
                continue
            oldest = next(iter(self._calls.values()))
            left_s = SILENCE_S - self._breaker.silent_for(oldest)
            if left_s > 0:
                await self._sleep(left_s)
            else:
                await self._ask(QUICK_S)

    async def _probe_open(self) -> None:
        """One probe; an unanswered one takes its whole time, however fast it fails."""
        began, takes_s = self._clock(), self._breaker.probe_s
        await self._ask(takes_s)
        if self._breaker.is_open:
            self._breaker.probe_failed()
            await self._sleep(began + takes_s - self._clock())

    async def _ask(self, deadline_s: float) -> None:
        began = self._clock()
        try:
            await self._probe(deadline_s)
        except errors.BatonError as error:
            self._note(began, error)
            if self._breaker.is_open:
                self._end_calls()
        else:
            self.heard()

    async def _sleep(self, seconds: float) -> None:
        """Until the time is over, or the breaker opens or closes."""
        self._turned.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._turned.wait()
