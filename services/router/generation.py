"""One request's life, from the client's fields to the last token of its last choice.

    intake     the fields become a prompt, sampling parameters and an end rule
    turn       the fleet's queue; at its turn the request holds a prefill worker, and room for
               its first choice on a decode worker
    prefill    computes the prompt, samples each choice's first token, answers with a handoff
    decode     each choice by itself, at the same time: goes on from the handoff; on another
               worker if one fails. Further choices claim their room when they get here
    output     each choice's tokens become text, up to the first stop string
    merge      the choices' deltas, as they come, are the request's one stream

A choice that ends gives its room back; one that fails for good ends the request. However that
ends (completed, failed, the client gone at any await), all that it holds is given back. Each
attempt is a call of its own, closed before the next begins, so nothing late is ever heard.
Knows no protobuf, no Redis, no KV and no tokenizer: those are behind its parts.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from baton.errors import BatonError, Exhausted, Unavailable
from baton.policy.fleet import Worker
from services.common.background import Background
from services.router.choice import Choice
from services.router.deadline import Deadline
from services.router.dispatch import Dispatcher, Placement
from services.router.events import Delta, Event, SampledToken
from services.router.fleet import FleetView
from services.router.intake import Intake
from services.router.leases import LeaseKeeper
from services.router.legs import Finished, Legs, Prompted, Started, Tokens
from services.router.life import Life
from services.router.merge import merged
from services.router.register import Register
from services.router.retry import Retries, given_up, is_retryable
from services.router.stopwatch import Stopwatch
from services.router.validation import RequestFields

log = logging.getLogger(__name__)

Steps = AsyncGenerator[Sequence[SampledToken], None]
"""New tokens of a choice as they come: each token in exactly one step."""
Deltas = AsyncGenerator[Delta, None]

_RETRY_AFTER_S = 1.0


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
    ) -> None:
        self._intake = intake
        self._register = register
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._legs = legs
        self._leases = leases
        self._retries = retries
        self._background = background

    async def generate(
        self, fields: RequestFields, deadline: Deadline
    ) -> AsyncGenerator[Event, None]:
        """Streams one request's output; closing or cancelling it ends the request.

        Raises InvalidRequest or NotFound where it can never work, Exhausted where there is no
        room, Unavailable where no worker (any more) can do it, DeadlineExceeded.
        """
        with self._register.request():
            watch = Stopwatch()
            self._retries.earn()
            async with deadline.bounding("while the prompt was tokenized"):
                accepted = await self._intake.accept(fields)
            life = Life.of(accepted, deadline, watch)
            try:
                await self._prefill(life)
                choices = [self._choice(life, choice) for choice in life.choices]
                async with aclosing(merged(choices)) as deltas:
                    async for delta in deltas:
                        if (prompt := life.show_prompt()) is not None:
                            yield prompt
                        yield delta
            finally:
                self._give_back(life)
            yield life.completed()

    async def _prefill(self, life: Life) -> None:
        """Every choice's first token, from a prefill worker. None where a decode worker is to
        compute the prompt beside its batch: all are to, or no prefill worker lives."""
        first = life.first
        while True:
            placement = await self._turn(life)
            first.claimed = placement.decode
            worker = placement.prefill
            if worker is None:
                return
            life.prefill_attempts += 1
            life.lease = self._leases.new(worker.transfer_address)
            try:
                prefilled = await self._legs.prefill(
                    worker, first.attempt, life.generation, life.lease.lease_id, life.deadline
                )
            except BatonError as error:
                self._leases.release(life.lease)
                attempts_left = self._retries.limits.prefill_attempts - life.prefill_attempts
                await self._prepare_retry(life, first, worker, error, attempts_left)
                continue
            self._let_worker_go(first, worker)
            life.prefilled(worker, prefilled)
            return

    async def _turn(self, life: Life) -> Placement:
        async with life.deadline.bounding("while waiting for a turn"):
            placement = await self._dispatcher.turn(
                life.first.demand, waited_s=life.watch.waited, exclude=life.failed
            )
        life.watch.turn()
        return placement

    async def _choice(self, life: Life, choice: Choice) -> Deltas:
        """One choice's output, from its first token to its end."""
        try:
            if choice.emitted:
                yield choice.show(choice.emitted)
            async with aclosing(self._decode(life, choice)) as steps:
                async for tokens in steps:
                    yield choice.show(tokens)
                    if choice.ended:
                        break
        finally:
            self._let_choice_go(life, choice)
        if (rest := choice.show_rest()) is not None:
            yield rest

    async def _decode(self, life: Life, choice: Choice) -> Steps:
        """Every token after those emitted, from one decode worker after another if need be."""
        if life.prefiller is None and choice is not life.first:
            await life.begun.wait()  # the prompt's KV is cached then, where that worker has it
        while not choice.ended:
            worker = choice.decoder = await self._decode_worker(life, choice)
            choice.decode_attempts += 1
            try:
                async with aclosing(self._decode_at(worker, life, choice)) as steps:
                    async for tokens in steps:
                        yield tokens
            except BatonError as error:
                choice.needs_kv = True
                choice.finish_reason = choice.ending.reached(choice.emitted)
                if not choice.ended:
                    attempts_left = self._retries.limits.decode_attempts - choice.decode_attempts
                    await self._prepare_retry(life, choice, worker, error, attempts_left)

    async def _decode_at(self, worker: Worker, life: Life, choice: Choice) -> Steps:
        """What one worker adds, until the choice ends or the worker fails."""
        call = life.decode_call(choice, worker)
        if call.handoff is not None and life.lease is not None:
            self._leases.hold(life.lease)
        async with aclosing(self._legs.decode(worker, call, life.deadline)) as events:
            async for event in events:
                match event:
                    case Started():
                        self._started(life, choice, worker, event)
                    case Prompted(prompt_logprobs):
                        life.prompt_logprobs = prompt_logprobs
                    case Tokens(tokens):
                        life.take(choice, tokens)
                        yield tokens
                    case Finished(reason):
                        choice.finish_reason = reason

    async def _decode_worker(self, life: Life, choice: Choice) -> Worker:
        """The one that was claimed together with the prefill worker, else a new one.

        Room is waited for as long as another choice is at work, which gives room when it ends,
        and `room_s` besides.
        """
        claimed, choice.claimed = choice.claimed, None
        if claimed is not None:
            return claimed
        while True:
            patience = asyncio.timeout(self._retries.limits.room_s)
            try:
                async with life.deadline.bounding("while waiting for a decode worker"), patience:
                    return await self._dispatcher.claim_decode(
                        choice.demand,
                        exclude=life.failed,
                        fingerprint=life.layout,
                        near=life.holder,
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
        self._let_lease_go(life)
        if life.cached_tokens is None:
            life.cached_tokens = started.cached_tokens

    async def _prepare_retry(
        self, life: Life, choice: Choice, worker: Worker, error: BatonError, attempts_left: int
    ) -> None:
        """Makes ready for another attempt; raises where there must not be one."""
        if isinstance(error, Unavailable):
            self._fleet.report_failure(worker.worker_id, worker.incarnation)
        may_retry = is_retryable(error) and attempts_left > 0
        if not may_retry or not (choice.emitted or self._retries.spend()):
            raise given_up(error)
        log.info("%s: attempt %d: %s", choice.fleet_id, choice.attempt, error)
        self._register.counters.retried_legs += 1
        choice.attempt += 1
        life.failed.add((worker.worker_id, worker.incarnation))
        async with life.deadline.bounding("after a worker failed"):
            await self._dispatcher.release(choice.fleet_id)
            await self._retries.pause(choice.attempt)

    def _let_worker_go(self, choice: Choice, worker: Worker) -> None:
        self._fleet.report_success(worker.worker_id, worker.incarnation)
        release = self._dispatcher.release(choice.fleet_id, worker.worker_id)
        self._background.spawn(release, f"release {worker.worker_id}")

    def _let_lease_go(self, life: Life) -> None:
        if life.lease is not None and not life.needs_lease:
            self._leases.release(life.lease)

    def _let_choice_go(self, life: Life, choice: Choice) -> None:
        """Returns at once, so that it works in a cancelled task too."""
        if choice.given_back:
            return
        choice.given_back, choice.needs_kv = True, False
        self._let_lease_go(life)
        release = self._dispatcher.release(choice.fleet_id)
        self._background.spawn(release, f"release {choice.fleet_id}")

    def _give_back(self, life: Life) -> None:
        for choice in life.choices:
            self._let_choice_go(life, choice)
