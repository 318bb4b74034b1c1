"""Who runs on this worker: one attempt of a request at a time, and what room each has taken.

A later attempt ends the earlier one and waits until it has let go; an attempt that is not the
latest is refused, even if it arrives late. Knows no engine and no wire.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from baton.errors import BatonError, LostRace
from baton.naming import RequestId
from baton.policy.fleet import NOTHING, Claim, Usage
from engine.errors import IntegrityError

log = logging.getLogger(__name__)

REMEMBERED_REQUESTS = 4096
"""Requests whose latest attempt is remembered after it ended."""
SUPERSEDE_S = 5.0
"""How long a later attempt waits for the earlier one to let go."""

OnChange = Callable[[], None]
"""Told when the room taken changes."""
OnEnd = Callable[[BatonError], None]
"""Told that a run was ended from outside."""
OnDrain = Callable[[], None]
"""Told that the worker drains."""


@dataclass(frozen=True, slots=True)
class PromptWork:
    """A prompt to compute."""

    tokens: int
    """To be computed."""
    context: int
    """Before those."""


class Run:
    """One attempt of a request on this worker, from its arrival until it holds nothing."""

    def __init__(
        self, claim: Claim, cost: Usage, on_change: OnChange, itl_target_s: float | None = None
    ) -> None:
        self.claim = claim
        self.cost = cost
        """Room that it takes; grows with the sequence."""
        self.itl_target_s = itl_target_s
        self.holds_room = False
        self.unstarted: PromptWork | None = None
        """What it will have to compute, from its admission until its sequence was started."""
        self.moved = False
        """Whether its sequence goes on elsewhere, rather than having ended here."""
        self.left = asyncio.Event()
        self._on_change = on_change
        self._error: BatonError | None = None
        self._scope: asyncio.Timeout | None = None
        self._on_end: OnEnd | None = None
        self._on_drain: OnDrain | None = None

    def admitted(self, work: PromptWork | None = None) -> None:
        """From now on the run counts among what the worker holds; `work` is still to be begun."""
        self.holds_room = True
        self.unstarted = work
        self._on_change()

    def started(self) -> None:
        """The engine has the sequence, and tells itself what is left of it."""
        self.unstarted = None

    def grow(self, kv_tokens: int) -> None:
        """The sequence has room for `kv_tokens` from now on."""
        self.cost = Usage(self.cost.sequences, kv_tokens)
        self._on_change()

    def when_draining(self, on_drain: OnDrain) -> None:
        """Calls `on_drain` when the worker begins to drain, instead of what was to be called."""
        self._on_drain = on_drain

    def drain(self) -> None:
        """Tells the run that the worker drains; one that did not ask for it just goes on."""
        if self._on_drain is not None:
            self._on_drain()

    def end(self, error: BatonError) -> None:
        """Ends the run from outside: its `interruptible` work or its stream raises `error`."""
        if self._error is not None:
            return
        self._error = error
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())
        if self._on_end is not None:
            self._on_end(error)

    def when_ended(self, on_end: OnEnd) -> None:
        """Calls `on_end` once the run is ended from outside; at once where it was."""
        self._on_end = on_end
        if self._error is not None:
            on_end(self._error)

    @asynccontextmanager
    async def interruptible(self) -> AsyncIterator[None]:
        """Within it, `end` cancels what the task awaits and raises the reason instead."""
        if self._error is not None:
            raise self._error
        try:
            async with asyncio.timeout(None) as self._scope:
                yield
        except TimeoutError as timeout:
            if self._error is None:
                raise
            raise self._error from timeout
        finally:
            self._scope = None


@dataclass(slots=True)
class RunCounters:
    """How runs went, since the worker's start."""

    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    failed: int = 0


class Runs:
    """All runs of this worker."""

    def __init__(self, on_change: OnChange) -> None:
        self._on_change = on_change
        self._running: dict[RequestId, Run] = {}
        self._latest: OrderedDict[RequestId, int] = OrderedDict()
        self._refusal: BatonError | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self.counters = RunCounters()

    @property
    def usage(self) -> Usage:
        """Room that runs have taken."""
        return sum((run.cost for run in self._running.values() if run.holds_room), NOTHING)

    @property
    def taken(self) -> frozenset[Claim]:
        """The claims that `usage` counts."""
        return frozenset(run.claim for run in self._running.values() if run.holds_room)

    @property
    def itl_target_s(self) -> float | None:
        """The tightest inter-token latency target of the runs that hold room, in seconds."""
        targets = (run.itl_target_s for run in self._running.values() if run.holds_room)
        return min((one for one in targets if one is not None), default=None)

    @property
    def unstarted_prompts(self) -> list[PromptWork]:
        """What was admitted and not started yet."""
        return [run.unstarted for run in self._running.values() if run.unstarted is not None]

    @property
    def count(self) -> int:
        """Runs that have not left."""
        return len(self._running)

    @property
    def closed(self) -> bool:
        """Whether new runs are refused."""
        return self._refusal is not None

    def close(self, refusal: BatonError) -> None:
        """Refuses new runs with `refusal` from now on."""
        self._refusal = refusal
        self._on_change()

    def end_all(self, error: BatonError) -> None:
        """Ends every run."""
        for run in list(self._running.values()):
            run.end(error)

    def drain_all(self) -> None:
        """Tells every run that the worker drains."""
        for run in list(self._running.values()):
            run.drain()

    async def wait_empty(self) -> None:
        """Returns when no run is left."""
        await self._empty.wait()

    @asynccontextmanager
    async def enter(
        self, claim: Claim, cost: Usage, itl_target_s: float | None = None
    ) -> AsyncIterator[Run]:
        """A run for the block's duration, with the inter-token latency that it should have.

        Raises LostRace where `claim` is not the latest attempt, Unavailable where the worker is
        closed.
        """
        run = Run(claim, cost, self._on_change, itl_target_s)
        try:
            await self._join(run)
            yield run
        except LostRace:
            self.counters.refused += 1
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self.counters.cancelled += 1
            raise
        except BaseException:
            self.counters.failed += 1
            raise
        else:
            self.counters.finished += not run.moved
        finally:
            self._leave(run)

    async def _join(self, run: Run) -> None:
        claim = run.claim
        self._supersede(claim)
        previous = self._running.get(claim.request_id)
        if previous is not None:
            previous.end(LostRace("a later attempt of the request arrived", reason="SUPERSEDED"))
            try:
                async with asyncio.timeout(SUPERSEDE_S):
                    await previous.left.wait()
            except TimeoutError as error:
                raise LostRace("the earlier attempt has not let go yet") from error
            if self._latest.get(claim.request_id) != claim.attempt:
                raise LostRace("a later attempt of the request arrived", reason="SUPERSEDED")
        if self._refusal is not None:
            raise self._refusal
        self._running[claim.request_id] = run
        self._empty.clear()

    def _supersede(self, claim: Claim) -> None:
        latest = self._latest.get(claim.request_id, -1)
        if claim.attempt < latest:
            raise LostRace(
                f"attempt {latest} came before attempt {claim.attempt}", reason="SUPERSEDED"
            )
        if claim.attempt == latest and claim.request_id in self._running:
            raise LostRace("this attempt is running already", reason="DUPLICATE")
        self._latest[claim.request_id] = claim.attempt
        self._latest.move_to_end(claim.request_id)
        while len(self._latest) > REMEMBERED_REQUESTS:
            self._latest.popitem(last=False)

    def _leave(self, run: Run) -> None:
        if self._running.get(run.claim.request_id) is run:
            del self._running[run.claim.request_id]
        run.left.set()
        if not self._running:
            self._empty.set()
        if run.holds_room:
            run.holds_room = False
            self._on_change()

    def check_integrity(self) -> None:
        """Raises IntegrityError where the books contradict each other."""
        for request_id, run in self._running.items():
            if run.claim.request_id != request_id or run.left.is_set():
                raise IntegrityError(f"run of {request_id} is filed wrongly, or left")
        if self._empty.is_set() != (not self._running):
            raise IntegrityError(f"{len(self._running)} runs, yet empty is {self._empty.is_set()}")
