"""What a request's stream consists of, inside the router."""

from dataclasses import dataclass
from enum import Enum

from baton.naming import RequestId, WorkerId


class FinishReason(Enum):
    """Why an output ended."""

    STOP = "stop"
    """An end token, a stop token or a stop string."""
    LENGTH = "length"
    """max_tokens were generated."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token and how probable the model found it, where that was asked for."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens and their log probabilities, the most probable first."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request was let in: it has its turn."""

    request_id: RequestId
    seed: int
    predicted_ttft_s: float
    """From the arrival to the first token."""


@dataclass(frozen=True, slots=True)
class PromptShown:
    """The prompt, given back."""

    text: str
    """Special tokens left out; empty unless echo was asked for."""
    tokens: tuple[SampledToken, ...]
    has_logprobs: bool = False
    """Whether log probabilities were asked for; the first token has none."""


@dataclass(frozen=True, slots=True)
class Delta:
    """More output. A token's text may come in a later delta than the token."""

    text: str
    tokens: tuple[SampledToken, ...]
    choice: int = 0


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    """Over all choices."""
    cached_tokens: int
    """Prompt tokens that no one had to compute."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds that a request took, and where; `queue` and `prefill` add up to the third."""

    queue: float
    prefill: float
    time_to_first_token: float
    handoff_gap: float | None
    """From the first token to the second; None where no handoff lay between them."""
    total: float
    prefill_worker: WorkerId | None
    decode_worker: WorkerId | None
    """Of choice 0."""
    prefill_attempts: int
    decode_attempts: int
    """Of the choice that took the most."""
    predicted_ttft: float = 0.0
    """What `time_to_first_token` was predicted to be."""
    predicted_itl: float = 0.0
    """Between two tokens of choice 0."""
    migrations: int = 0
    """Times that a choice moved on with its KV."""


@dataclass(frozen=True, slots=True)
class CompletedChoice:
    """The end of one choice."""

    index: int
    finish_reason: FinishReason
    stop_string: str | None
    completion_tokens: int
    decode_worker: WorkerId | None


@dataclass(frozen=True, slots=True)
class Completed:
    """The end of the output."""

    choices: tuple[CompletedChoice, ...]
    """By index."""
    usage: TokenUsage
    timings: Timings
    request_id: RequestId
    seed: int


Event = Admitted | PromptShown | Delta | Completed
"""One `Admitted`, at most one `PromptShown`, any number of deltas, then one `Completed`."""
