"""Continues sequences: fetches their KV, joins them to the running batch, yields tokens.

Knows the host; no wire messages.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from baton.naming import BlobName, LeaseId, new_id
from baton.policy.fleet import Claim, Usage
from engine.types import FinishReason, Request, SampledToken
from services.worker.host import Host
from services.worker.runs import Run
from services.worker.sequences import StartedSequence


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """A sequence to continue for a claim."""

    claim: Claim
    request: Request
    handed_over: frozenset[BlobName] | None
    """Blobs of the prompt that a handoff names; None where the sequence starts from a prompt."""
    source_address: str = ""
    """Of another host's transfer service that holds them; empty: our own does."""

    @property
    def cost(self) -> Usage:
        """Room that the job takes."""
        return Usage(1, self.request.life_tokens)


@dataclass(frozen=True, slots=True)
class Started:
    """The sequence has its KV and joins the batch."""

    cached_tokens: int
    missing_tokens: int
    fetched_blobs: int
    fetched_bytes: int
    fetching_s: float


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of the prompt's tokens from the second one on."""

    tokens: tuple[SampledToken, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one step."""

    tokens: tuple[SampledToken, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The sequence ended."""

    reason: FinishReason
    decoded_tokens: int


Event = Started | PromptLogprobs | Tokens | Finished


class DecodeFlow:
    """Continues sequences on a host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def run(self, job: DecodeJob) -> AsyncGenerator[Event, None]:
        """Yields one Started, then PromptLogprobs where they are wanted, then Tokens, then one
        Finished. Raises LostRace where there is no room or a later attempt came. Close it:
        everything is free again then."""
        async with AsyncExitStack() as stack:
            run = await stack.enter_async_context(self._host.runs.enter(job.claim, job.cost))
            async with run.interruptible():
                sequence = await self._start(run, job, stack)
            run.when_ended(sequence.stream.fail)
            yield self._started(job, sequence)
            decoded = 0
            prompt: list[SampledToken] = []
            while True:
                output = await sequence.stream.next()
                prompt += output.prompt_logprobs
                if output.tokens:
                    if not decoded and job.request.reports_prompt:
                        yield PromptLogprobs(tuple(prompt))
                    decoded += len(output.tokens)
                    yield Tokens(output.tokens)
                if output.finish_reason is not None:
                    break
        yield Finished(output.finish_reason, decoded)

    async def _start(self, run: Run, job: DecodeJob, stack: AsyncExitStack) -> StartedSequence:
        sequences, transfer = self._host.sequences, self._host.transfer
        available = job.handed_over
        if available is None:
            available = await sequences.held_elsewhere(job.request)
        # A lease of its own, so that it can end with the copies: the handoff's is the router's.
        lease_id = LeaseId(new_id("lease"))
        try:
            opening = sequences.open(run, job.request, available, lease_id, job.source_address)
            return await stack.enter_async_context(opening)
        finally:
            if available:
                self._host.background.spawn(transfer.release_lease(lease_id))

    def _started(self, job: DecodeJob, sequence: StartedSequence) -> Started:
        missing = len(job.request.tokens) - sequence.cached_tokens
        if job.handed_over is not None and sequence.cached_tokens < len(job.request.prompt):
            self._host.recomputed_handoffs += 1
        fetched = sequence.fetched
        return Started(
            cached_tokens=sequence.cached_tokens,
            missing_tokens=missing,
            fetched_blobs=len(fetched.blobs),
            fetched_bytes=fetched.bytes,
            fetching_s=fetched.seconds,
        )
