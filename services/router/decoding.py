"""The tokens of one choice after those that there are, from one decode worker after another.

A worker may finish the choice, fail, or let it go with its KV (it drains, or lacks blocks).
After a failure another one goes on from the last handoff, or from the token ids where that is
lost; after a handoff, from that. Knows nothing of how the choice began, nor of the others.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from baton.errors import BatonError, Exhausted
from baton.policy.fleet import Worker
from services.router.calls import Finished, HandedOff, Prompted, Started, Tokens
from services.router.choice import Choice
from services.router.dispatch import Dispatcher
from services.router.events import Delta
from services.router.fleet import FleetView
from services.router.holdings import Holdings
from services.router.legs import Legs
from services.router.life import Life
from services.router.register import Counters
from services.router.request_trace import DecodePart
from services.router.retry import RetryLimits

Deltas = AsyncGenerator[Delta, None]

_RETRY_AFTER_S = 1.0


class Decoding:
    """Has choices decoded. Holds no state of its own."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        fleet: FleetView,
        legs: Legs,
        holdings: Holdings,
        counters: Counters,
        limits: RetryLimits,
    ) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._legs = legs
        self._holdings = holdings
        self._counters = counters
        self._limits = limits

    async def deltas(self, life: Life, choice: Choice) -> Deltas:
        """Every token that is to come, each in exactly one delta. The choice has ended when
        this does; raises what ends the request."""
        if life.prefiller is None and not (choice.ended or choice is life.leader):
            await life.begun.wait()  # the prompt's KV is cached then, where that worker has it
        while not choice.ended:
            worker = choice.decoder = await self._worker(life, choice)
            choice.decode_attempts += 1
            try:
                with life.trace.decoding(choice, worker) as part:
                    async with aclosing(self._at(worker, life, choice, part)) as deltas:
                        async for delta in deltas:
                            yield delta
            except BatonError as error:
                choice.needs_kv = choice.recovers = True
                choice.finish_reason = choice.ending.reached(choice.emitted)
                if not choice.ended:
                    failures = choice.decode_attempts - choice.migrations
                    attempts_left = self._limits.decode_attempts - failures
                    await self._holdings.prepare_retry(life, choice, worker, error, attempts_left)

    async def _at(self, worker: Worker, life: Life, choice: Choice, part: DecodePart) -> Deltas:
        """What one worker adds, until the choice ends or leaves it, or the worker fails."""
        call = life.decode_call(choice, worker)
        if call.handoff is not None:
            self._holdings.hold_lease(call.handoff.lease)
        decoding = self._legs.decode(worker, call, life.deadline, part.headers)
        async with aclosing(decoding) as events:
            async for event in events:
                match event:
                    case Started():
                        self._started(life, choice, worker, event)
                    case Prompted(prompt_logprobs):
                        life.prompt_logprobs = prompt_logprobs
                    case Tokens(tokens):
                        life.take(choice, tokens)
                        part.stepped()
                        if (delta := choice.show()) is not None:
                            yield delta
                        if choice.ended:
                            return
                    case Finished(reason):
                        choice.finish_reason = reason
                    case HandedOff():
                        part.handed_off(event.draining)
                        choice.finish_reason = choice.ending.reached(choice.emitted)
                        await self._holdings.move(life, choice, worker, event)

    async def _worker(self, life: Life, choice: Choice) -> Worker:
        """The one that was claimed together with the prefill worker, else a new one.

        Room is waited for as long as another choice is at work, which gives room when it ends,
        and `room_s` besides.
        """
        claimed, choice.claimed = choice.claimed, None
        if claimed is not None:
            return claimed
        while True:
            patience = asyncio.timeout(self._limits.room_s)
            try:
                async with life.deadline.bounding("while waiting for a decode worker"), patience:
                    return await self._dispatcher.claim_decode(
                        choice.demand(life.itl_target_s),
                        exclude=life.failed,
                        fingerprint=life.layout_of(choice),
                        near=life.near(choice),
                        priority=life.generation.urgency.priority,
                    )
            except TimeoutError:
                if not life.decodes:
                    raise Exhausted(
                        f"no decode worker has had room for choice {choice.index}",
                        reason="NO_ROOM",
                        retry_after=_RETRY_AFTER_S,
                    ) from None

    def _started(self, life: Life, choice: Choice, worker: Worker, started: Started) -> None:
        """The worker has the KV: if it is the last to need it, whoever held it may forget it."""
        self._fleet.report_success(worker.worker_id, worker.incarnation)
        choice.needs_kv = False
        self._holdings.let_leases_go(life)
        if choice.recovers and choice.emitted:
            missing = len(life.generation.prompt_ids) - started.cached_tokens
            if started.cached_tokens and missing <= worker.block_tokens:
                self._counters.resumed += 1
            else:
                self._counters.recomputed += 1
        choice.recovers = False
        life.started(choice, started)
