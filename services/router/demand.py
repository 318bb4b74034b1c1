"""Counts what this router's clients ask of the fleet, and adds it to what Redis has of all.

About once a second, and at the end. While Redis is away it is kept, and added later; each batch
is added once, however often it had to be sent.
"""

import asyncio
import contextlib
import logging
from typing import Protocol

from baton.errors import BatonError
from baton.naming import new_id
from baton.policy.cost import pairs
from services.common.fleet.demand import Batch, DemandTotals
from services.router.report import Outcome, Report
from services.router.request import Generation

log = logging.getLogger(__name__)

PERIOD_S = 1.0


class Totals(Protocol):
    """What it needs of `services.common.fleet.store.FleetStore`."""

    async def add_demand(self, totals: DemandTotals, batch: Batch) -> None: ...


class DemandCounter:
    """Belongs to one event loop, which runs already."""

    def __init__(self, shared: Totals, period_s: float = PERIOD_S) -> None:
        self._shared = shared
        self._period_s = period_s
        self._source = new_id("demand")
        self._batches = 0
        self._sending: tuple[Batch, DemandTotals] | None = None
        """What Redis may have or not, until it says that it has it."""
        self._new = DemandTotals()
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Adds in the background."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Adds what is left, within the deadlines of two adds; it is lost where Redis is away."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        with contextlib.suppress(BatonError):
            await self.add()

    def arrived(self, generation: Generation) -> None:
        """A valid request came."""
        self._new += DemandTotals(requests=1, prompt_tokens=len(generation.prompt_ids))

    def ended(self, report: Report) -> None:
        """It has ended, however that came."""
        self._new += _served(report)

    async def add(self) -> None:
        """Adds what was counted since the last time. Raises Unavailable where Redis is away."""
        if self._sending is not None:
            await self._send()
        if self._new != DemandTotals():
            self._batches += 1
            self._sending = Batch(self._source, self._batches), self._new
            self._new = DemandTotals()
            await self._send()

    async def _send(self) -> None:
        assert self._sending is not None
        batch, totals = self._sending
        await self._shared.add_demand(totals, batch)
        self._sending = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                await self.add()
                self._failing = False
            except Exception as error:
                if not self._failing:
                    bug = not isinstance(error, BatonError)
                    log.warning("demand is not told, trying on: %s", error, exc_info=bug)
                self._failing = True


def _served(report: Report) -> DemandTotals:
    """What is known of a request at its end."""
    generation = report.generation
    prompt_tokens, had = len(generation.prompt_ids), generation.emitted
    before = [len(had[index]) if index < len(had) else 0 for index in range(len(report.emitted))]
    generated = [(old, new) for old, new in zip(before, report.emitted, strict=True) if new > old]
    totals = DemandTotals(
        refused=report.outcome is Outcome.REFUSED,
        sequences=len(generated),
        output_tokens=sum(new - old for old, new in generated),
        output_context=sum(pairs(new - old, prompt_tokens + old) for old, new in generated),
        ttft_judged=report.ttft_held is not None,
        ttft_held=bool(report.ttft_held),
        itl_judged=report.itl_held is not None,
        itl_held=bool(report.itl_held),
    )
    if not generated:
        return totals
    cached = report.usage.cached_tokens
    new = prompt_tokens - cached
    return totals + DemandTotals(computed_requests=1, new_tokens=new, new_pairs=pairs(new, cached))
