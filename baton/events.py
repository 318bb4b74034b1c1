"""What a generation yields: deltas while it runs, then one completion; and their sum.

A generation has one choice unless more were asked for (`n`); their deltas are mixed.

Plain immutable values; knows nothing of gRPC.
"""

from collections import defaultdict
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
    text: bytes = b""
    """What it adds to a text; a special token's name."""


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token."""

    id: int
    logprob: float | None = None
    """Its natural log probability; None unless `logprobs` was asked for."""
    top: tuple[TokenLogprob, ...] = ()
    """The most probable tokens at its position, most probable first; as many as asked for."""
    text: bytes = b""
    """What it adds to a text, or a special token's name; only where `logprobs` was asked for."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    """Tokens generated over all choices, end and stop tokens included."""
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
    """Of choice 0; empty where no worker decoded."""
    prefill_attempts: int
    decode_attempts: int
    """Of the choice that took the most."""
    predicted_ttft: float = 0.0
    """What `time_to_first_token` was predicted to be."""
    predicted_itl: float = 0.0
    """Inter-token latency that was predicted for choice 0."""
    migrations: int = 0
    """Times that a choice moved to another worker with its KV."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The word that a generation was let in; before all events, and none of them."""

    request_id: str
    seed: int
    """The seed that is used."""
    predicted_ttft: float
    """Seconds from the request's arrival to the first token, as predicted."""


@dataclass(frozen=True, slots=True)
class ResumeFrom:
    """Where a generation goes on whose stream was cut off."""

    seed: int
    emitted: tuple[tuple[int, ...], ...]
    """Ids of the tokens that came, of each choice by index."""


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """The prompt, where `echo` or `prompt_logprobs` asked for it; before the first delta."""

    text: str
    """Special tokens left out; empty unless `echo` asked for it."""
    tokens: tuple[Token, ...]
    """With log probabilities from the second one on, where `prompt_logprobs` asked for them."""


@dataclass(frozen=True, slots=True)
class Delta:
    """More output."""

    text: str
    """Whole characters; empty while one is incomplete or a stop string may begin."""
    tokens: tuple[Token, ...]
    """A token's text may come in a later delta."""
    choice: int = 0
    """Index of the choice that it belongs to."""


@dataclass(frozen=True, slots=True)
class CompletedChoice:
    """The end of one choice."""

    index: int
    finish_reason: FinishReason
    stop_string: str | None
    """The stop string that ended it, if one did."""
    completion_tokens: int
    """Tokens generated for it, an end or stop token included."""
    decode_worker: str
    """Empty where no worker decoded."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The end of the output; always the last event."""

    choices: tuple[CompletedChoice, ...]
    """At least one, by index."""
    usage: Usage
    timings: Timings
    request_id: str
    seed: int
    """The seed that was used: with the same request it gives the same output."""

    @property
    def finish_reason(self) -> FinishReason:
        """Choice 0's."""
        return self.choices[0].finish_reason

    @property
    def stop_string(self) -> str | None:
        """Choice 0's."""
        return self.choices[0].stop_string


Event = PromptEcho | Delta | Completed


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """The whole output of one choice."""

    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    stop_string: str | None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole output. Its text, tokens and finish reason are choice 0's."""

    choices: tuple[CompletionChoice, ...]
    """At least one, by index."""
    completed: Completed
    prompt: PromptEcho | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tokens(self) -> tuple[Token, ...]:
        return self.choices[0].tokens

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def usage(self) -> Usage:
        return self.completed.usage


class Collector:
    """Adds events up to a `Completion`; not thread-safe."""

    def __init__(self) -> None:
        self._deltas: defaultdict[int, list[Delta]] = defaultdict(list)
        self._prompt: PromptEcho | None = None
        self._completed: Completed | None = None

    def add(self, event: Event) -> None:
        """Takes the next event; nothing may follow a completion."""
        assert self._completed is None, "an event after the completion"
        match event:
            case Delta():
                self._deltas[event.choice].append(event)
            case PromptEcho():
                self._prompt = event
            case Completed():
                self._completed = event

    def result(self) -> Completion:
        """The sum; only once the completion was added."""
        assert self._completed is not None, "no completion yet"
        choices = tuple(map(self._choice, self._completed.choices))
        return Completion(choices, self._completed, self._prompt)

    def _choice(self, completed: CompletedChoice) -> CompletionChoice:
        deltas = self._deltas[completed.index]
        return CompletionChoice(
            text="".join(delta.text for delta in deltas),
            tokens=tuple(token for delta in deltas for token in delta.tokens),
            finish_reason=completed.finish_reason,
            stop_string=completed.stop_string,
        )


@dataclass(frozen=True, slots=True)
class DefaultSampling:
    """What is drawn by where a request does not say; None: as if nothing were given."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Latencies to hold, in seconds."""

    ttft: float
    """Time to first token."""
    itl: float
    """Inter-token latency."""


class ToolFormat(StrEnum):
    """How a model writes the calls of functions; `baton.v1.ToolFormat` says it in full."""

    NONE = "none"
    """Its chat template knows no functions."""
    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    JSON = "json"
    """Unknown; a JSON object where the caller forces one."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text as tokens."""

    ids: tuple[int, ...]
    texts: tuple[bytes, ...]
    """What each adds to a text; a special token's name."""


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
    default_sampling: DefaultSampling = DefaultSampling()
    """What the model's makers recommend."""
    interactive_targets: Targets | None = None
    """Of requests that give none; None: the server doesn't tell."""
    batch_targets: Targets | None = None
    """Of those in the batch class."""
    tool_format: ToolFormat = ToolFormat.NONE
    """How the model calls functions."""
