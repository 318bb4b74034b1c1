"""Computes prompts: reuses KV, computes the rest, publishes it meanwhile, draws first tokens.

Knows the host; no wire messages.
"""

import time
from dataclasses import dataclass, replace

from baton.errors import LostRace
from baton.naming import LeaseId
from baton.policy.fleet import Claim, Usage
from engine.types import BlockRef, FinishReason, FirstToken, Request, SampledToken
from services.worker.constraints import raise_failure
from services.worker.host import Host
from services.worker.outbox import SequenceStream
from services.worker.prompt_spans import PromptSpans
from services.worker.publishing import Publication
from services.worker.runs import Run


@dataclass(frozen=True, slots=True)
class PrefillJob:
    """A prompt to compute for a claim. `request` hands over after one token and exports; it may
    have several choices."""

    claim: Claim
    request: Request
    lease_id: LeaseId
    """Of the router, to publish the blobs under."""

    @property
    def cost(self) -> Usage:
        """Room that the job takes."""
        return Usage(1, self.request.life_tokens)


@dataclass(frozen=True, slots=True)
class PrefillStats:
    """What a prompt cost, in tokens, blobs, bytes and seconds."""

    cached_tokens: int
    computed_tokens: int
    waiting_s: float
    computing_s: float
    publishing_s: float
    published_blobs: int
    published_bytes: int


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A computed prompt."""

    first_tokens: tuple[FirstToken, ...]
    """Of each choice, by index."""
    held: tuple[BlockRef, ...]
    """The blobs that the transfer service holds of it."""
    stats: PrefillStats
    prompt_logprobs: tuple[SampledToken, ...] = ()
    """Of the prompt's tokens from the second one on; empty unless asked for."""

    @property
    def unfinished(self) -> tuple[FirstToken, ...]:
        """Of the choices that go on elsewhere; nothing is handed over without any."""
        return tuple(first for first in self.first_tokens if first.finish_reason is None)


@dataclass(frozen=True, slots=True)
class _Computed:
    """What the engine put out for a prompt, exports apart."""

    first_tokens: tuple[FirstToken, ...]
    reason: FinishReason
    prompt_logprobs: tuple[SampledToken, ...]


class PrefillFlow:
    """Computes prompts on a host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def run(self, job: PrefillJob) -> Prefilled:
        """Computes a prompt. Raises LostRace where there is no room or a later attempt came.

        When cancelled, or ended by an error, everything is free again once it returns.
        """
        arrived = time.monotonic()
        async with self._host.runs.enter(job.claim, job.cost) as run, run.interruptible():
            handed_over = False
            try:
                result = await self._prefill(run, job, arrived)
                handed_over = bool(result.unfinished)
                return result
            finally:
                if not handed_over:
                    lease = self._host.transfer.release_lease(job.lease_id)
                    self._host.background.spawn(lease)

    async def _prefill(self, run: Run, job: PrefillJob, arrived: float) -> Prefilled:
        sequences = self._host.sequences
        available = await sequences.held_elsewhere(_without_report(job.request))
        async with sequences.open(run, job.request, available, job.lease_id) as sequence:
            started = time.monotonic()
            async with self._host.publication(job.lease_id) as publication:
                spans = PromptSpans(sequence.cached_tokens, arrived)
                output = await _output(sequence.stream, publication, spans)
                if output.reason is FinishReason.PREEMPTED:
                    raise LostRace("the prompt's KV blocks were needed", reason="NO_ROOM")
                sampled = time.monotonic()
                handed_over = output.reason is FinishReason.HANDOVER
                if handed_over:
                    await publication.finish()
                published = time.monotonic()
        computed = len(job.request.prompt) - sequence.cached_tokens
        copied = [block for block in publication.held.values() if block.name not in available]
        return Prefilled(
            output.first_tokens,
            tuple(publication.held.values()) if handed_over else (),
            PrefillStats(
                cached_tokens=sequence.cached_tokens,
                computed_tokens=computed,
                waiting_s=started - arrived,
                computing_s=sampled - started,
                publishing_s=published - sampled,
                published_blobs=len(copied),
                published_bytes=sum(
                    self._host.port.layout.block_bytes(block.group) for block in copied
                ),
            ),
            output.prompt_logprobs,
        )


def _without_report(request: Request) -> Request:
    """The request as if the prompt's log probabilities were not wanted: what is held of it is
    not used where they are, and need not be published again all the same."""
    return replace(request, sampling=replace(request.sampling, prompt_logprobs=None))


async def _output(
    stream: SequenceStream, publication: Publication, spans: PromptSpans
) -> _Computed:
    """All that comes until the sequence ends; exports go to `publication` as they come."""
    prompt: list[SampledToken] = []
    while True:
        output = await stream.next()
        spans.came(output, stream.step)
        publication.add(output.exports)
        raise_failure(output)
        prompt += output.prompt_logprobs
        if output.finish_reason is not None:
            return _Computed(output.first_tokens, output.finish_reason, tuple(prompt))
