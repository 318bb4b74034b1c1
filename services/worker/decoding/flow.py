"""Continues sequences: fetches their KV, joins them to the running batch, yields tokens; lets go
of those that have to go on elsewhere, with their KV.

Knows the host; no wire messages.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from functools import partial

from baton.errors import Unavailable
from baton.naming import LeaseId, new_id
from engine.types import FinishReason, SampledToken, SequenceOutput
from services.worker.constraints import raise_failure
from services.worker.decoding.events import (
    DecodeJob,
    Event,
    Finished,
    HandedOff,
    PromptLogprobs,
    Started,
    Tokens,
)
from services.worker.host import Host
from services.worker.prompt_spans import PromptSpans
from services.worker.runs import Run
from services.worker.sequences import StartedSequence

_LEAVING = {FinishReason.PREEMPTED, FinishReason.HANDOVER}


class DecodeFlow:
    """Continues sequences on a host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def run(self, job: DecodeJob) -> AsyncGenerator[Event, None]:
        """Yields the events of the sequence. Raises LostRace where there is no room or a later
        attempt came, Unavailable where the worker drains and has not begun. Close it: everything
        is free again then, and a handoff that was not taken over has no lease."""
        arrived = time.monotonic()
        decoded: list[SampledToken] = []
        lease_id = LeaseId(new_id("lease"))
        taken_over = True
        try:
            async with AsyncExitStack() as stack:
                run = await stack.enter_async_context(
                    self._host.runs.enter(
                        job.claim, job.cost(self._host.growth_tokens), job.itl_target_s
                    )
                )
                sequence = await self._begin(run, job, stack)
                yield self._started(job, sequence)
                spans = PromptSpans(sequence.cached_tokens, arrived)
                prompt: list[SampledToken] = []
                while True:
                    output = await sequence.stream.next()
                    spans.came(output, sequence.stream.step)
                    prompt += output.prompt_logprobs
                    raise_failure(output)
                    if output.tokens:
                        if not decoded and job.request.reports_prompt:
                            yield PromptLogprobs(tuple(prompt))
                        decoded += output.tokens
                        yield Tokens(output.tokens)
                    if output.finish_reason is not None:
                        break
                last: Event = Finished(output.finish_reason, len(decoded))
                if output.finish_reason in _LEAVING:
                    taken_over, run.moved = False, True
                    async with run.interruptible():
                        last = await self._leave(output, tuple(decoded), lease_id)
            if job.handed_over is not None and sequence.fetched.blobs and taken_over:
                self._host.canary.consider(job.request)
            yield last
            taken_over = True
        finally:
            if not taken_over:
                self._host.background.spawn(self._host.transfer.release_lease(lease_id))

    async def _begin(self, run: Run, job: DecodeJob, stack: AsyncExitStack) -> StartedSequence:
        """Starts the sequence. A drain sends it elsewhere as it came until then, and with what
        it has from then on."""
        run.when_draining(partial(run.end, _draining()))
        async with run.interruptible():
            sequence = await self._start(run, job, stack)
        run.when_ended(sequence.stream.fail)
        run.when_draining(partial(self._hand_over, job))
        return sequence

    async def _start(self, run: Run, job: DecodeJob, stack: AsyncExitStack) -> StartedSequence:
        sequences, transfer = self._host.sequences, self._host.transfer
        if job.handed_over is None:
            available, source = await sequences.held_elsewhere(job.request), ""
        else:
            available, source = job.handed_over.names, job.handed_over.source_address
        # A lease of its own, so that it can end with the copies: the handoff's is the router's.
        lease_id = LeaseId(new_id("lease"))
        try:
            opening = sequences.open(run, job.request, available, lease_id, source)
            return await stack.enter_async_context(opening)
        finally:
            if available:
                self._host.background.spawn(transfer.release_lease(lease_id))

    def _started(self, job: DecodeJob, sequence: StartedSequence) -> Started:
        missing = len(job.request.tokens) - sequence.cached_tokens
        if job.handed_over is None:
            self._host.local_prompts += not job.request.emitted
        elif sequence.cached_tokens < self._resumable(job, job.handed_over.tokens):
            self._host.recomputed_handoffs += 1
        fetched = sequence.fetched
        return Started(
            cached_tokens=sequence.cached_tokens,
            missing_tokens=missing,
            fetched_blobs=len(fetched.blobs),
            fetched_bytes=fetched.bytes,
            fetching_s=fetched.seconds,
        )

    def _resumable(self, job: DecodeJob, tokens: int) -> int:
        """Tokens of a handed over sequence with KV of `tokens` that need no computing: a prompt
        that was not computed to its end goes on at a whole block."""
        known = min(tokens, len(job.request.tokens) - 1)
        return known if job.request.emitted else known - known % self._host.port.layout.block_size

    def _hand_over(self, job: DecodeJob) -> None:
        self._host.background.spawn(self._host.port.hand_over(job.request.request_id))

    async def _leave(
        self, output: SequenceOutput, decoded: tuple[SampledToken, ...], lease_id: LeaseId
    ) -> HandedOff:
        """Publishes what a sequence left with; what can't be is computed by who goes on."""
        assert output.finish_reason is not None
        async with self._host.publication(lease_id) as publication:
            publication.add(output.exports)
            await publication.finish()
        held = tuple(publication.held.values())
        return HandedOff(output.finish_reason, decoded, output.kv_tokens, held, lease_id)


def _draining() -> Unavailable:
    return Unavailable("the worker is draining", reason="DRAINING")
