"""What a generation yields: deltas while it runs, then one completion; and their sum.

Plain immutable values; knows nothing of gRPC.
"""

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why an output ended."""

    STOP = "stop"
    """An end token, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` were generated."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and how probable the model found it."""

    id: int
    logprob: float
    """Natural logarithm of the probability, before temperature and filters."""


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token."""

    id: int
    logprob: float | None = None
    """Its natural log probability; None unless `logprobs` was asked for."""
    top: tuple[TokenLogprob, ...] = ()
    """The most probable tokens at its position, most probable first; as many as asked for."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    """Tokens generated, an end or stop token included."""
    cached_tokens: int
    """Prompt tokens that were not computed because their KV was cached."""


@dataclass(frozen=True, slots=True)
class Timings:
    """How long a request took, in seconds, and where, as its router saw it."""

    queue: float
    prefill: float
    """From its turn to the first token."""
    time_to_first_token: float
    """From its arrival to the first token."""
    handoff_gap: float | None
    """From the first token to the second; None without a handoff."""
    total: float
    prefill_worker: str
    decode_worker: str
    """Empty where no worker decoded."""
    prefill_attempts: int
    decode_attempts: int


@dataclass(frozen=True, slots=True)
class Delta:
    """More output."""

    text: str
    """Whole characters; empty while one is incomplete or a stop string may begin."""
    tokens: tuple[Token, ...]
    """A token's text may come in a later delta."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The end of the output; always the last event."""

    finish_reason: FinishReason
    stop_string: str | None
    """The stop string that ended it, if one did."""
    usage: Usage
    timings: Timings
    request_id: str
    seed: int
    """The seed that was used: with the same request it gives the same output."""


Event = Delta | Completed


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole output."""

    text: str
    tokens: tuple[Token, ...]
    completed: Completed

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)

    @property
    def finish_reason(self) -> FinishReason:
        return self.completed.finish_reason

    @property
    def usage(self) -> Usage:
        return self.completed.usage


class Collector:
    """Adds events up to a `Completion`; not thread-safe."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[Token] = []
        self._completed: Completed | None = None

    def add(self, event: Event) -> None:
        """Takes the next event; nothing may follow a completion."""
        assert self._completed is None, "an event after the completion"
        if isinstance(event, Delta):
            self._texts.append(event.text)
            self._tokens.extend(event.tokens)
        else:
            self._completed = event

    def result(self) -> Completion:
        """The sum; only once the completion was added."""
        assert self._completed is not None, "no completion yet"
        return Completion("".join(self._texts), tuple(self._tokens), self._completed)


@dataclass(frozen=True, slots=True)
class Model:
    """A model as it is served."""

    name: str
    vocab_size: int
    context_tokens: int
    """Most tokens of prompt and output together."""
    eos_token_ids: frozenset[int]
    has_chat_template: bool
    default_max_tokens: int
    """`max_tokens` of requests that set none."""
