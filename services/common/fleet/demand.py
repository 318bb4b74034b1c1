"""What clients have asked of a fleet so far, as sums that only grow.

Routers add to them in Redis; the difference of two readings is the demand between them. After
Redis came back empty the sums begin anew.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class DemandTotals:
    """Sums over all valid requests since the fleet's first one, refused ones included where
    nothing else is said."""

    requests: float = 0.0
    """Requests that came."""
    prompt_tokens: float = 0.0
    """Their prompts' tokens, cached or not."""
    refused: float = 0.0
    """Requests that were refused because their targets could not be held."""
    computed_requests: float = 0.0
    """Requests whose prompt was computed: those that the following two are of."""
    new_tokens: float = 0.0
    """Prompt tokens that were not cached."""
    new_pairs: float = 0.0
    """(token, earlier token or itself) pairs of those (`baton.policy.cost.pairs`)."""
    sequences: float = 0.0
    """Choices that ended with some output: those that the following two are of."""
    output_tokens: float = 0.0
    """Tokens generated for them."""
    output_context: float = 0.0
    """Context tokens, summed over those: the mean context of a decode step is this divided by
    `output_tokens`."""
    ttft_judged: float = 0.0
    """Requests that ended with a first token, and had a target for it."""
    ttft_held: float = 0.0
    """Those of them whose first token came within its target."""
    itl_judged: float = 0.0
    """Requests that ended with two tokens or more, and had a target for the time between."""
    itl_held: float = 0.0
    """Those of them whose mean inter-token latency was within it."""

    def __add__(self, other: "DemandTotals") -> "DemandTotals":
        return DemandTotals(*(a + b for a, b in zip(self.values(), other.values(), strict=True)))

    def __sub__(self, other: "DemandTotals") -> "DemandTotals":
        return DemandTotals(*(a - b for a, b in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[float, ...]:
        """The sums, in the order of the fields."""
        return tuple(getattr(self, name) for name in NAMES)


@dataclass(frozen=True, slots=True)
class Batch:
    """Names what a source adds at once, so that to add it again changes nothing."""

    source: str
    """One process's life: a new one after each start."""
    number: int
    """From 1; a source's later batches have greater ones, and follow when those before are in."""


NAMES = tuple(field.name for field in fields(DemandTotals))
