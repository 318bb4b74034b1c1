"""A sequence to continue, and what is told of it while it runs. Values; no wire messages."""

from dataclasses import dataclass

from baton.naming import BlobName, LeaseId
from baton.policy.fleet import Claim, Usage
from engine.types import BlockRef, FinishReason, Request, SampledToken


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The KV that a sequence comes with."""

    names: frozenset[BlobName]
    """Of its blobs."""
    tokens: int
    """Tokens that they cover."""
    source_address: str = ""
    """Of another host's transfer service that holds them; empty: our own does."""


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """A sequence to continue for a claim."""

    claim: Claim
    request: Request
    handed_over: HandedOver | None
    """None where the sequence starts from a prompt."""
    itl_target_s: float | None = None
    """Inter-token latency that it should have; None: any."""

    def cost(self, growth_tokens: int | None) -> Usage:
        """Room that the job takes at first: its tokens and some to grow. None: all it can need."""
        life = self.request.life_tokens
        if growth_tokens is None:
            return Usage(1, life)
        return Usage(1, min(life, len(self.request.tokens) + growth_tokens))


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


@dataclass(frozen=True, slots=True)
class HandedOff:
    """The sequence goes on elsewhere."""

    reason: FinishReason
    """PREEMPTED, or HANDOVER where the worker drains."""
    decoded: tuple[SampledToken, ...]
    """All tokens that were sampled here."""
    kv_tokens: int
    """Tokens of prompt and output whose KV there was."""
    held: tuple[BlockRef, ...]
    """The blobs that the transfer service holds of it."""
    lease_id: LeaseId
    """Under which it does."""


Event = Started | PromptLogprobs | Tokens | Finished | HandedOff
"""One Started, PromptLogprobs where they are wanted, any number of Tokens, and in the end one
Finished or HandedOff."""
