"""Clients as a production team would write them, and what they get.

They wait as long as a refusal tells them to, and go on at another router when theirs is gone.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from baton import errors, events
from baton.client import AsyncClient, ResumeFrom
from tests.faults.workload import RequestPlan

_MOVES = 3
_ROUTER_GONE = ("UNREACHABLE", "DRAINING")
_GRACE_SECONDS = 2.0
"""Beyond its deadline a client may be kept waiting for so long."""


@dataclass
class Outcome:
    """What a client got."""

    plan: RequestPlan
    tokens: list[list[int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    completed: events.Completed | None = None
    error: errors.BatonError | None = None
    cancelled: bool = False
    silent: bool = False
    """Its deadline had long passed, and there was no answer."""
    moves: int = 0
    """Times that it went on at another router."""
    resumes: int = 0
    """Those of them with tokens that it had already."""
    refusals: int = 0
    """Times that it was told to come back later, and did."""
    seconds: float = 0.0

    @property
    def what(self) -> str:
        """In a word."""
        if self.silent:
            return "silence"
        if self.error is not None:
            return type(self.error).__name__
        return "cancelled" if self.cancelled else "whole"


Watch = Callable[[int], None]
"""Hears how many tokens of choice 0 a request has had; -1: it is being sent."""


async def play(
    plan: RequestPlan, addresses: Sequence[str], stop: str | None, watch: Watch
) -> Outcome:
    """Runs a request as a client does that goes on at another router when its own is gone."""
    outcome = Outcome(plan, [[] for _ in range(plan.n)], [""] * plan.n)
    began = time.monotonic()
    try:
        async with asyncio.timeout(plan.timeout + _GRACE_SECONDS):
            await _play(outcome, addresses, stop, watch, began + plan.timeout)
    except TimeoutError:
        outcome.silent = True
    outcome.seconds = time.monotonic() - began
    return outcome


async def _play(
    outcome: Outcome, addresses: Sequence[str], stop: str | None, watch: Watch, deadline: float
) -> None:
    watch(-1)
    router = outcome.plan.router
    while True:
        outcome.error = None
        async with AsyncClient(addresses[router % len(addresses)]) as client:
            try:
                await _stream(client, outcome, stop, watch, deadline - time.monotonic())
                return
            except errors.Exhausted as error:
                outcome.error = error
                wait = error.retry_after
                if wait is None or any(outcome.tokens) or time.monotonic() + wait > deadline:
                    return
                outcome.refusals += 1
                await asyncio.sleep(wait)
            except errors.BatonError as error:
                outcome.error = error
                gone = error.reason in _ROUTER_GONE and len(addresses) > 1
                if not gone or outcome.moves == _MOVES:
                    return
                outcome.moves += 1
                router += 1


async def _stream(
    client: AsyncClient, outcome: Outcome, stop: str | None, watch: Watch, timeout: float
) -> None:
    plan = outcome.plan
    options = plan.options() | ({"stop": [stop]} if stop else {})
    if any(outcome.tokens):
        outcome.resumes += 1
        options["resume_from"] = ResumeFrom(plan.seed, tuple(map(tuple, outcome.tokens)))
    async with client.generate(list(plan.prompt), timeout=max(0.001, timeout), **options) as stream:
        async for event in stream:
            if isinstance(event, events.Completed):
                outcome.completed = event
            elif isinstance(event, events.Delta):
                outcome.tokens[event.choice] += [token.id for token in event.tokens]
                outcome.texts[event.choice] += event.text
                if event.choice == 0:
                    watch(len(outcome.tokens[0]))
                if plan.cancel_at is not None and len(outcome.tokens[0]) >= plan.cancel_at:
                    outcome.cancelled = True
                    return
