"""What a request is: as it came, as each field was checked, and as a generation to carry out.

Knows no protobuf types and no rules; the rules are `services.router.validation`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from baton import naming
from baton.policy.score import Urgency
from services.common.constraints import Constraint
from services.common.text import Conversation


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the served model allows."""

    name: str
    vocab_size: int
    context_tokens: int
    """Most tokens of prompt and output together."""
    default_max_tokens: int
    """max_tokens of requests that set none, before it is cut to the room there is."""
    max_characters: int
    """More characters of text than this never fit (`TextModel.max_characters`)."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to continue."""

    text: str


class ToolCallFields(NamedTuple):
    """A function's call that the model asked for, as it came."""

    call_id: str
    name: str
    arguments_json: str


class MessageFields(NamedTuple):
    """One message of a conversation, as it came. Empty strings: absent."""

    role: str
    content: str
    name: str = ""
    tool_calls: tuple[ToolCallFields, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation to continue, oldest message first."""

    messages: tuple[MessageFields, ...]
    tools_json: tuple[str, ...] = ()
    template_variables_json: str = ""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids to continue."""

    ids: tuple[int, ...]


Prompt = TextPrompt | ChatPrompt | TokenPrompt
CheckedPrompt = TextPrompt | Conversation | TokenPrompt
"""A prompt whose fields are right."""


@dataclass(frozen=True, slots=True)
class TokenizeFields:
    """A question for tokens, as it came."""

    prompt: TextPrompt | ChatPrompt | None
    model: str = ""
    special_tokens: bool = True
    """Whether a text gets those that it gets when it is continued."""


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """Sampling parameters as they came. None: absent."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, bias), by token id."""
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class ResumeFrom:
    """Where a stream that was cut off goes on."""

    seed: int
    emitted: tuple[tuple[int, ...], ...]
    """Ids of the tokens that the client has, of each choice."""


@dataclass(frozen=True, slots=True)
class ClassTargets:
    """Latencies, in seconds, that requests get that ask for none."""

    interactive_ttft_s: float = 2.0
    interactive_itl_s: float = 0.2
    batch_ttft_s: float = 60.0
    batch_itl_s: float = 2.0


@dataclass(frozen=True, slots=True)
class RequestFields:
    """A request as it came. Empty strings and None: absent."""

    prompt: Prompt | None
    request_id: str = ""
    model: str = ""
    sampling: SamplingFields = field(default_factory=SamplingFields)
    stop: tuple[str, ...] = ()
    choices: int = 0
    echo: bool = False
    bad_words: tuple[str, ...] = ()
    best_of: int = 0
    batch: bool | None = False
    """Whether it is of the batch class; None: it names a class that there is not."""
    ttft_target_s: float | None = None
    itl_target_s: float | None = None
    priority: int = 0
    tenant: str = ""
    resume_from: ResumeFrom | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters with every default filled in."""

    temperature: float
    top_k: int
    """0: all tokens."""
    top_p: float
    min_p: float
    seed: int
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    logprobs: int | None
    """How many of the most probable tokens to report; None: no log probabilities at all."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    """Those of `bad_words` are among them in a `Generation`."""
    prompt_logprobs: int | None = None
    """As `logprobs`, for the prompt."""
    constraint: Constraint | None = None
    """What the output must be; None: anything."""


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request whose fields are each right; whether it fits depends on the prompt's tokens."""

    request_id: naming.RequestId
    prompt: CheckedPrompt
    sampling: Sampling
    max_tokens: int | None
    stop: tuple[str, ...]
    choices: int
    echo: bool
    bad_words: tuple[str, ...]
    urgency: Urgency
    emitted: tuple[tuple[int, ...], ...]
    """Ids of the tokens that the client has, of each choice. Empty: the stream is a new one."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A request that can work: what the router carries out."""

    request_id: naming.RequestId
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    choices: int = 1
    echo: bool = False
    urgency: Urgency = field(default_factory=Urgency)
    emitted: tuple[tuple[int, ...], ...] = ()
    """Ids of the tokens that the client has, of each choice. Empty: the stream is a new one."""

    @property
    def resumed(self) -> bool:
        """Whether the client has tokens already."""
        return any(self.emitted)

    @property
    def salt(self) -> bytes:
        """Of the names of all KV that is computed for it."""
        return naming.tenant_salt(self.urgency.tenant)
