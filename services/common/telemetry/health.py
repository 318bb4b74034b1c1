"""Whether a process lives, and whether it wants to be asked, for whoever restarts and routes.

It lives as long as its event loop turns and nothing keeps it from its work. Told over gRPC
(`services.common.rpc`, under the service name LIVE), and over HTTP beside the metrics.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

LIVE = "live"
"""Name of the health service that tells whether the process lives; the empty one is whether it
wants to be asked."""
BEAT_S = 1.0
SILENCE_S = 10.0
"""An event loop that does not turn for longer counts as stuck."""

Clock = Callable[[], float]
Trouble = Callable[[], str]
"""What keeps the process from its work, for people; empty: nothing. Called on the event loop, at
each beat."""
OnChange = Callable[[bool], Awaitable[None]]
"""Told, on the event loop, whether the process lives, when that changed."""


class Health:
    """Belongs to one event loop; `ready` and `problem` may be asked by any thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._beaten_s: float | None = None
        """None while nothing beats."""
        self._wanted = False
        self._trouble = ""
        self._troubles: list[Trouble] = []
        self._listeners: list[OnChange] = []
        self._task: asyncio.Task[None] | None = None

    def watch(self, trouble: Trouble) -> None:
        """Asks `trouble`, too."""
        self._troubles.append(trouble)

    def listen(self, on_change: OnChange) -> None:
        """Tells `on_change` of later changes."""
        self._listeners.append(on_change)

    def set_ready(self, ready: bool) -> None:
        """Whether the process wants to be asked; not at first."""
        self._wanted = ready

    @property
    def ready(self) -> bool:
        """Whether it wants to be asked, and its event loop turns."""
        return self._wanted and not self._stuck

    @property
    def problem(self) -> str:
        """Why the process does not live, in one line; empty: it does."""
        return self._stuck or self._trouble

    @property
    def goes_on(self) -> bool:
        """Whether nothing keeps it from its work; for who asks on the event loop, which turns
        then."""
        return not self._trouble

    @property
    def _stuck(self) -> str:
        if self._beaten_s is None:
            return ""
        silence_s = self._clock() - self._beaten_s
        if silence_s <= SILENCE_S:
            return ""
        return f"the event loop has not turned for {silence_s:.0f} s"

    def start(self) -> None:
        """Beats in the background from now on."""
        self._beaten_s = self._clock()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stops that."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._beaten_s = None

    async def beat(self) -> None:
        """The event loop turns: looks for troubles, and tells of changes."""
        self._beaten_s = self._clock()
        before = self._trouble
        self._trouble = next(filter(None, (one() for one in self._troubles)), "")
        if bool(before) == bool(self._trouble):
            return
        if self._trouble:
            log.error("the process does not go on: %s", self._trouble)
        else:
            log.info("the process goes on")
        for on_change in self._listeners:
            await on_change(not self._trouble)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self.beat()
            except Exception:
                log.exception("health could not be told")
