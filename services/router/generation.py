"""One request's life, from the client's fields to the last token of its last choice.

    intake     the fields become a prompt, sampling parameters and an end rule
    turn       the fleet's queue; at its turn the request holds a prefill worker, and room for
               its first choice on a decode worker. One whose targets can't be held is refused
    prefill    computes the prompt, samples each choice's first token, answers with a handoff.
               Left out where a decode worker does that, and for a stream that is resumed
    decode     each choice by itself, at the same time: goes on from the handoff; on another
               worker if one fails or lets it go. Further choices claim their room when they
               get here
    output     each choice's tokens become text, up to the first stop string
    merge      the choices' deltas, as they come, are the request's one stream

A choice that ends gives its room back; one that fails for good ends the request. However that
ends (completed, failed, the client gone at any await), all that it holds is given back. Each
attempt is a call of its own, closed before the next begins, so nothing late is ever heard.
Knows no protobuf, no Redis, no KV and no tokenizer: those are behind its parts.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from baton.errors import BatonError
from baton.policy.fleet import Worker
from services.common.background import Background
from services.common.merge import merged
from services.router.choice import Choice
from services.router.deadline import Deadline
from services.router.decoding import Decoding, Deltas
from services.router.dispatch import Dispatcher
from services.router.events import Completed, Event
from services.router.fleet import FleetView
from services.router.hints import CachedPrefixes
from services.router.holdings import Holdings
from services.router.intake import Intake
from services.router.leases import LeaseKeeper
from services.router.legs import Legs
from services.router.life import Life
from services.router.register import Register
from services.router.report import Reporter, Sink
from services.router.request_trace import RequestTrace
from services.router.retry import Retries
from services.router.stopwatch import Stopwatch
from services.router.validation import RequestFields


class Generator:
    """Carries requests out. Holds no state of its own: a request's is in its `Life`."""

    def __init__(
        self,
        intake: Intake,
        register: Register,
        dispatcher: Dispatcher,
        fleet: FleetView,
        legs: Legs,
        leases: LeaseKeeper,
        retries: Retries,
        background: Background,
        hints: CachedPrefixes,
        reporter: Reporter,
    ) -> None:
        counters = register.counters
        self._intake = intake
        self._register = register
        self._dispatcher = dispatcher
        self._legs = legs
        self._limits = retries.limits
        self._hints = hints
        self._reporter = reporter
        self._holdings = Holdings(dispatcher, fleet, leases, retries, counters, background)
        self._decoding = Decoding(dispatcher, fleet, legs, self._holdings, counters, retries.limits)

    async def generate(
        self, fields: RequestFields, deadline: Deadline, told: Sink | None = None
    ) -> AsyncGenerator[Event, None]:
        """Streams one request's output; closing or cancelling it ends the request. What became
        of it is reported to `told`, before the last event or the error.

        Raises InvalidRequest or NotFound where it can never work, Exhausted where there is no
        room or its targets can't be held, Unavailable where no worker (any more) can do it,
        DeadlineExceeded.
        """
        with self._register.request():
            watch = Stopwatch()
            trace = RequestTrace(watch.arrived)
            with trace.running():
                async with deadline.bounding("while the prompt was tokenized"):
                    accepted = await self._intake.accept(fields)
                life = Life.of(accepted, deadline, watch, trace)
                trace.accepted(life)
                with self._reporter.reporting(life, told):
                    try:
                        async with aclosing(self._output(life)) as events:
                            async for event in events:
                                yield event
                    finally:
                        self._holdings.let_all_go(life)
                        trace.ended(life)
            completed = life.completed()
            self._count(life, completed)
            yield completed

    async def _output(self, life: Life) -> AsyncGenerator[Event, None]:
        """All events but the last."""
        if not life.ended:
            await self._turn(life)
        yield life.admitted()
        await self._prefill(life)
        choices = [self._choice(life, choice) for choice in life.choices]
        async with aclosing(merged(choices)) as deltas:
            async for delta in deltas:
                if (prompt := life.show_prompt()) is not None:
                    yield prompt
                yield delta

    async def _turn(self, life: Life) -> None:
        """Waits until the request has a place."""
        leader, generation = life.leader, life.generation
        async with life.deadline.bounding("while waiting for a turn"):
            cached = await self._hints.cached(leader.token_ids, generation.salt)
            placement = await self._dispatcher.turn(
                leader.demand(life.itl_target_s, cached),
                generation.urgency,
                waited_s=life.watch.waited,
                exclude=life.failed,
                whole=generation.resumed,
            )
        life.placed(placement)

    async def _prefill(self, life: Life) -> None:
        """Every choice's first token, where the request was placed on a prefill worker; else a
        decode worker is to compute the prompt beside its batch."""
        while life.placement is not None and (worker := life.placement.prefill) is not None:
            if await self._prefill_at(worker, life):
                return
            await self._turn(life)

    async def _prefill_at(self, worker: Worker, life: Life) -> bool:
        """Whether the worker computed the prompt; if not, another one may be tried."""
        life.prefill_attempts += 1
        lease = self._holdings.new_lease(life, worker)
        try:
            prefilled = await self._legs.prefill(
                worker,
                life.leader.attempt,
                life.generation,
                lease,
                life.deadline,
                life.trace.prefill_headers(),
            )
        except BatonError as error:
            self._holdings.let_lease_go(lease)
            left = self._limits.prefill_attempts - life.prefill_attempts
            await self._holdings.prepare_retry(life, life.leader, worker, error, left)
            return False
        self._holdings.let_worker_go(life.leader, worker)
        life.prefilled(worker, prefilled)
        return True

    async def _choice(self, life: Life, choice: Choice) -> Deltas:
        """One choice's output, from its first token to its end."""
        try:
            if (first := choice.show()) is not None:
                yield first
            async with aclosing(self._decoding.deltas(life, choice)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._holdings.let_choice_go(life, choice)
        if (rest := choice.show_rest()) is not None:
            yield rest

    def _count(self, life: Life, completed: Completed) -> None:
        """Tells what came of it to those who predict."""
        placement = life.placement
        if placement is None:
            return
        itl_s, counters = life.watch.itl_s, self._register.counters
        counters.degraded += placement.degraded
        counters.local += placement.local
        ttft_s = completed.timings.time_to_first_token
        counters.ttft_held += ttft_s <= placement.ttft_target_s
        if life.leader.attempt == 0 and not life.generation.resumed:
            self._dispatcher.observe_first_token(placement, ttft_s)
        target_s = placement.itl_target_s
        counters.itl_held += itl_s is None or target_s is None or itl_s <= target_s
        for choice in life.choices:
            self._dispatcher.observe_output(len(choice.emitted))
        handoff = life.watch.handoff(life.leader.index)
        if life.handoff is not None and handoff and life.leader.decode_attempts == 1:
            self._dispatcher.observe_handoff(*handoff)
