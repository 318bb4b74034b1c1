"""What routes answer, as /openapi.json describes it. Answers are made as plain dictionaries."""

from typing import Any, Literal

from pydantic import BaseModel


class ErrorDetails(BaseModel):
    """An error."""

    message: str
    type: str
    param: str | None
    """The field of the body at fault."""
    code: str | None


class ErrorAnswer(BaseModel):
    """What every error looks like."""

    error: ErrorDetails


class PromptDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int


class UsageAnswer(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Account(BaseModel):
    """How long it took and where, in seconds."""

    request_id: str
    seed: int
    queue_s: float
    prefill_s: float
    ttft_s: float
    total_s: float
    prefill_worker: str
    decode_worker: str


class TextLogprobsAnswer(BaseModel):
    """Log probabilities, by token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One choice; choices are numbered prompt by prompt."""

    index: int
    text: str
    logprobs: TextLogprobsAnswer | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | None
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class CompletionAnswer(BaseModel):
    """The prompts, continued."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer
    baton: Account


class FunctionAnswer(BaseModel):
    """A function to call."""

    name: str
    arguments: str


class ToolCallAnswer(BaseModel):
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: FunctionAnswer


class AssistantMessage(BaseModel):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[ToolCallAnswer] = []


class ChatChoice(BaseModel):
    """One choice."""

    index: int
    message: AssistantMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | None


class ChatAnswer(BaseModel):
    """The assistant's next message."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    baton: Account


class TokenizeAnswer(BaseModel):
    """Tokens of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] = []


class DetokenizeAnswer(BaseModel):
    """Text of tokens."""

    prompt: str


class ModelAnswer(BaseModel):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelAnswer]


class Status(BaseModel):
    """Whether it works."""

    status: str
    message: str = ""


OTHERS = (ErrorAnswer, ModelAnswer, ModelList, Status)
