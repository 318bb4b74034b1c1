"""What clients send: the bodies of all routes, as OpenAI and its common extensions have them.

Shapes and plain ranges are checked here; what depends on the model, routers check. A field that
is null counts as absent. Fields that are not listed are refused unless `fields` says that they
change nothing.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.gateway.fields import Int, Prompts, Strings

MAX_CHOICES = 16
_UINT32_MAX = 2**32 - 1
Count = Annotated[Int, Field(ge=0, le=_UINT32_MAX)]
Positive = Annotated[Int, Field(ge=1, le=_UINT32_MAX)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Seconds = Annotated[float, Field(gt=0, le=3600)]


class Body(BaseModel):
    """A body, or a part of one, that may have further fields."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=(), frozen=True
    )


class Closed(BaseModel):
    """A part that has no further fields."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        frozen=True,
        populate_by_name=True,
    )


class StreamOptions(Closed):
    """What a stream brings besides the output."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = Field(None, description="Accepted; nothing is added.")
    continuous_usage_stats: bool | None = Field(
        None, description="Accepted; usage comes at the end."
    )


class JsonSchemaFormat(Closed):
    """A JSON Schema and its name."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="Accepted; outputs are always held to it.")


class ResponseFormat(Closed):
    """What the output must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Closed):
    """What the output must be, in one of these ways."""

    json_: dict[str, Any] | bool | str | None = Field(
        None, alias="json", description="A JSON Schema, or its text."
    )
    json_object: bool | None = Field(None, description="true: any JSON object.")
    regex: str | None = Field(None, description="A regular expression that fits all of it.")
    choice: list[str] | None = Field(None, description="Texts, one of which it is.")
    grammar: str | None = Field(None, description="A grammar in Lark's notation.")


class Generating(Body):
    """What all generations have in common."""

    model: str | None = Field(None, description="Name of the model; absent: the one served.")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Int, Field(ge=-1, le=_UINT32_MAX)] | None = Field(
        None, description="0 and -1: all tokens."
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[Int, Field(ge=-(2**63), lt=2**64)] | None = None
    n: Annotated[Int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Strings | None = None
    stop_token_ids: list[Count] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, description="By token id."
    )
    bad_words: list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | str | None = Field(
        None, json_schema_extra={"deprecated": True}
    )
    guided_regex: str | None = Field(None, json_schema_extra={"deprecated": True})
    guided_choice: list[str] | None = Field(None, json_schema_extra={"deprecated": True})
    guided_grammar: str | None = Field(None, json_schema_extra={"deprecated": True})
    user: str | None = Field(None, description="Accepted; nothing depends on it.")
    request_class: Literal["interactive", "batch"] | None = Field(
        None, description="Whom the answer is for; decides targets and the place in the queue."
    )
    ttft_target: Seconds | None = Field(
        None, description="Time to first token to hold; what can't be held is refused with 429."
    )
    itl_target: Seconds | None = Field(None, description="Inter-token latency to hold.")
    priority: Annotated[Int, Field(ge=-10, le=10)] | None = Field(
        None, description="Each step is as much as having come a second earlier."
    )


class CompletionRequest(Generating):
    """/v1/completions."""

    prompt: Prompts
    max_tokens: Count | None = Field(None, description="0: with echo alone, to score the prompt.")
    echo: bool | None = None
    logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = Field(
        None, description="As `logprobs` of the prompt; in the choice's `prompt_logprobs`."
    )
    best_of: Positive | None = Field(None, description="Must be equal to n.")
    suffix: str | None = Field(None, description="Must be empty.")


class FunctionCall(Body):
    """The function that is called."""

    name: str
    arguments: str = Field(description="The text of a JSON object.")


class ToolCallPart(Body):
    """A call that an assistant asked for."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Body):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        Any,
        Field(json_schema_extra={"anyOf": [
            {"type": "string"},
            {"type": "array", "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            }},
            {"type": "null"},
        ]}),
    ] = None  # fmt: skip
    name: str | None = None
    tool_calls: list[ToolCallPart] | None = None
    tool_call_id: str | None = None


class ChatRequest(Generating):
    """/v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: Positive | None = Field(None, description="As max_completion_tokens.")
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = Field(
        None, description="Only with logprobs."
    )
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further variables of the model's chat template."
    )


class TokenizeRequest(Body):
    """/v1/tokenize: a prompt or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Body):
    """/v1/detokenize."""

    model: str | None = None
    tokens: list[Count]
