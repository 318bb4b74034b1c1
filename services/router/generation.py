"""One request's life, from the client's fields to the last token.

    intake     the fields become a prompt, sampling parameters and an end rule
    turn       the fleet's queue; at its turn the request holds a prefill and a decode worker
    prefill    computes the prompt, samples the first token, answers with a handoff
    decode     goes on from the handoff; on another worker if one fails
    output     tokens become text, up to the first stop string

However it ends (completed, failed, the client gone at any await), all that it holds is given
back. Each attempt is a call of its own, closed before the next begins, so nothing late is
ever heard. Knows no protobuf, no Redis, no KV and no tokenizer: those are behind its parts.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from baton.errors import BatonError, Unavailable
from baton.policy.fleet import Worker
from services.common.background import Background
from services.router.deadline import Deadline
from services.router.dispatch import Dispatcher, Placement
from services.router.events import Delta, Event, SampledToken
from services.router.fleet import FleetView
from services.router.intake import Intake
from services.router.leases import LeaseKeeper
from services.router.legs import Finished, Legs, Started, Tokens
from services.router.life import Life
from services.router.register import Register
from services.router.retry import Retries, given_up, is_retryable
from services.router.stopwatch import Stopwatch
from services.router.validation import RequestFields

log = logging.getLogger(__name__)

Steps = AsyncGenerator[Sequence[SampledToken], None]
"""New tokens as they come: each token of an output in exactly one step."""


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
            life = Life.of(accepted.generation, accepted.ending, deadline, watch)
            output = accepted.output
            try:
                async with aclosing(self._steps(life)) as steps:
                    async for tokens in steps:
                        yield output.push(tokens)
                        if output.stop_string is not None:
                            break
            finally:
                self._give_back(life)
            if rest := output.finish():
                yield Delta(rest, ())
            yield life.completed(output.stop_string)

    async def _steps(self, life: Life) -> Steps:
        """The request's tokens, wherever they come from."""
        first = await self._prefill(life)
        if first is not None:
            yield (first,)
        async with aclosing(self._decode(life)) as steps:
            async for tokens in steps:
                yield tokens

    async def _prefill(self, life: Life) -> SampledToken | None:
        """The first token, from a prefill worker; None where a decode worker is to compute the
        prompt beside its batch: all are to, or no prefill worker lives."""
        while True:
            placement = await self._turn(life)
            life.claimed = placement.decode
            worker = placement.prefill
            if worker is None:
                return None
            life.prefill_attempts += 1
            life.lease = self._leases.new(worker.transfer_address)
            try:
                prefilled = await self._legs.prefill(
                    worker, life.attempt, life.generation, life.lease.lease_id, life.deadline
                )
            except BatonError as error:
                self._let_lease_go(life)
                attempts_left = self._retries.limits.prefill_attempts - life.prefill_attempts
                await self._prepare_retry(life, worker, error, attempts_left)
                continue
            self._let_worker_go(life, worker)
            life.prefilled(worker, prefilled)
            return prefilled.first_token

    async def _turn(self, life: Life) -> Placement:
        async with life.deadline.bounding("while waiting for a turn"):
            placement = await self._dispatcher.turn(
                life.demand, waited_s=life.watch.waited, exclude=life.failed
            )
        life.watch.turn()
        return placement

    async def _decode(self, life: Life) -> Steps:
        """Every token after those emitted, from one decode worker after another if need be."""
        while life.finish_reason is None:
            worker = life.decoder = await self._decode_worker(life)
            life.decode_attempts += 1
            try:
                async with aclosing(self._decode_at(worker, life)) as steps:
                    async for tokens in steps:
                        yield tokens
            except BatonError as error:
                life.finish_reason = life.ending.reached(life.emitted)
                if life.finish_reason is None:
                    attempts_left = self._retries.limits.decode_attempts - life.decode_attempts
                    await self._prepare_retry(life, worker, error, attempts_left)

    async def _decode_at(self, worker: Worker, life: Life) -> Steps:
        """What one worker adds, until the output ends or the worker fails."""
        handoff = life.handoff_for(worker)
        if handoff is not None and life.lease is not None:
            self._leases.hold(life.lease)
        events = self._legs.decode(
            worker, life.attempt, life.generation, handoff, life.emitted, life.deadline
        )
        async with aclosing(events):
            async for event in events:
                match event:
                    case Started():
                        self._started(life, worker, event)
                    case Tokens(tokens):
                        life.take(tokens)
                        yield tokens
                    case Finished(reason):
                        life.finish_reason = reason

    async def _decode_worker(self, life: Life) -> Worker:
        """The one that was claimed together with the prefill worker, else a new one."""
        claimed, life.claimed = life.claimed, None
        if claimed is not None:
            return claimed
        layout = life.prefiller.layout_fingerprint if life.prefiller is not None else None
        async with life.deadline.bounding("while waiting for a decode worker"):
            return await self._dispatcher.claim_decode(
                life.demand, exclude=life.failed, fingerprint=layout
            )

    def _started(self, life: Life, worker: Worker, started: Started) -> None:
        """The worker has the KV: whoever held it may forget it."""
        self._fleet.report_success(worker.worker_id, worker.incarnation)
        self._let_lease_go(life)
        if life.cached_tokens is None:
            life.cached_tokens = started.cached_tokens

    async def _prepare_retry(
        self, life: Life, worker: Worker, error: BatonError, attempts_left: int
    ) -> None:
        """Makes ready for another attempt; raises where there must not be one."""
        if isinstance(error, Unavailable):
            self._fleet.report_failure(worker.worker_id, worker.incarnation)
        may_retry = is_retryable(error) and attempts_left > 0
        if not may_retry or not (life.emitted or self._retries.spend()):
            raise given_up(error)
        log.info("%s: attempt %d: %s", life.fleet_id, life.attempt, error)
        self._register.counters.retried_legs += 1
        life.attempt += 1
        life.failed.add((worker.worker_id, worker.incarnation))
        async with life.deadline.bounding("after a worker failed"):
            await self._dispatcher.release(life.fleet_id)
            await self._retries.pause(life.attempt)

    def _let_lease_go(self, life: Life) -> None:
        if life.lease is not None:
            self._leases.release(life.lease)

    def _let_worker_go(self, life: Life, worker: Worker) -> None:
        self._fleet.report_success(worker.worker_id, worker.incarnation)
        release = self._dispatcher.release(life.fleet_id, worker.worker_id)
        self._background.spawn(release, f"release {worker.worker_id}")

    def _give_back(self, life: Life) -> None:
        """Returns at once, so that it works in a cancelled task too."""
        self._let_lease_go(life)
        release = self._dispatcher.release(life.fleet_id)
        self._background.spawn(release, f"release {life.fleet_id}")
