"""Computes a sampled few handoffs again, to see whether KV means the same after its journey.

Two short sequences of the same tokens are run to one more token: one on the KV that came with the
handoff, as far as it is cached here, one under a fresh salt, so that nothing is reused. How far
their log probabilities lie apart is the drift: rounding, where all is well.

It works after the request has ended, one at a time, in room that nobody needs, and gives way to
whoever comes. Knows the engine's port and how busy the worker is; no wire.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from baton.drift import alarming_drift
from baton.errors import BatonError
from baton.naming import new_id
from engine.errors import EngineError
from engine.types import Request, SampledToken, SamplingParams
from services.common.background import Background
from services.worker.port import EnginePort

log = logging.getLogger(__name__)

TOP_TOKENS = 20
PATIENCE_S = 30.0
"""For both sequences together."""
MOST_TOKENS = 16_384
"""Longer ones are left alone: what is wrong with KV shows in shorter ones, too."""
LOWEST_PRIORITY = -1_000_000
"""Below every request's: the first to go where blocks run out."""

Quiet = Callable[[int], bool]
"""Whether a sequence of so many tokens would be in nobody's way now."""


@dataclass(slots=True)
class CanaryWork:
    """What canaries have made the engine count that was no user's."""

    computed_tokens: int = 0
    sampled_tokens: int = 0
    cached_tokens: int = 0


class Canary:
    """Belongs to the event loop."""

    def __init__(
        self,
        port: EnginePort,
        background: Background,
        quiet: Quiet,
        ratio: float,
        rng: Callable[[], float] = random.random,
    ) -> None:
        """`ratio`: of handoffs that are looked at. `rng` gives numbers from 0 to below 1."""
        self.on_drift: Callable[[float], None] = lambda _: None
        """Told each drift that was found."""
        self.count = 0
        """Handoffs that were compared."""
        self.alarms = 0
        """Those of them that drifted further than rounding explains."""
        self.drift = 0.0
        """The largest that was found."""
        self.work = CanaryWork()
        self._port = port
        self._background = background
        self._quiet = quiet
        self._ratio = ratio
        self._rng = rng
        self._dtype = str(port.config.dtype).removeprefix("torch.")
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def running(self) -> bool:
        """Whether one is under way."""
        return self._task is not None and not self._task.done()

    def consider(self, request: Request) -> None:
        """Maybe looks at a handoff whose sequence has just ended; returns at once."""
        if self._stopped or self.running or self._rng() >= self._ratio:
            return
        tokens = len(request.tokens)
        if tokens <= self._port.layout.block_size or tokens > MOST_TOKENS:
            return
        if tokens < self._port.limits.context_tokens and self._quiet(tokens + 1):
            self._task = self._background.spawn(self._look(request), name="canary")

    def give_way(self) -> None:
        """Ends what runs: a request needs the engine. What it held is free a moment later."""
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """Ends what runs, and starts no more; the background's end is that of what was held."""
        self._stopped = True
        self.give_way()

    async def _look(self, request: Request) -> None:
        # An engine that refuses, hangs or fails: whoever needs it hears of it.
        with suppress(BatonError, EngineError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                drift = await self._compare(request)
            if drift is not None:
                self._found(drift)

    async def _compare(self, request: Request) -> float | None:
        """The drift; None where the handoff's KV is not here any more, or there was no room."""
        handed, reused = await self._next_token(request, request.salt)
        if handed is None or not reused:
            return None
        again, _ = await self._next_token(request, new_id("canary").encode())
        return None if again is None else drift_between(handed, again)

    async def _next_token(self, request: Request, salt: bytes) -> tuple[SampledToken | None, int]:
        """The token after those of `request`, and how many tokens were not computed for it."""
        key = new_id("canary")
        sampling = SamplingParams(
            temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=TOP_TOKENS
        )
        probe = Request(key, request.tokens, sampling, salt=salt, priority=LOWEST_PRIORITY)
        stream = self._port.outbox.open(key)
        try:
            await self._port.admit(probe, ())
            cached = await self._port.start_sequence(key, ())
            while True:
                output = await stream.next()
                if output.exports:
                    self._port.release_exports(output.exports)
                if output.finish_reason is not None:
                    break
            self._count(len(probe.tokens), cached, len(output.tokens))
            return (output.tokens[0] if output.tokens else None), cached
        finally:
            await self._background.complete(self._let_go(key))

    async def _let_go(self, key: str) -> None:
        try:
            await self._port.cancel(key)
        finally:
            self._port.outbox.close(key)

    def _count(self, tokens: int, cached: int, sampled: int) -> None:
        self.work.computed_tokens += tokens - cached
        self.work.cached_tokens += cached
        self.work.sampled_tokens += sampled

    def _found(self, drift: float) -> None:
        self.count += 1
        self.drift = max(self.drift, drift)
        self.on_drift(drift)
        if drift > alarming_drift(self._dtype):
            self.alarms += 1
            log.warning(
                "KV that was handed over gives other log probabilities than KV computed here: "
                "they differ by up to %.4g in %s",
                drift,
                self._dtype,
            )


def drift_between(one: SampledToken, other: SampledToken) -> float:
    """The largest difference of a log probability that two lists of the most probable tokens
    show. A token that only one has is at most as probable in the other as that one's last."""
    return max(_beyond(one, other), _beyond(other, one))


def _beyond(one: SampledToken, other: SampledToken) -> float:
    known = dict(other.top)
    last = min(known.values(), default=0.0)
    differences = (
        abs(logprob - known[token]) if token in known else max(0.0, logprob - last)
        for token, logprob in one.top
    )
    return max(differences, default=0.0)
