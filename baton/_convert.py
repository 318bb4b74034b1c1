"""From the client's values to request messages, for both clients.

Checks types, and what the wire cannot carry; whether values make sense the router decides.
Knows no channels and no calls.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from baton import errors
from baton._checks import (
    INT32_MAX,
    UINT32_MAX,
    UINT64_MAX,
    kind_of,
    to_duration,
    to_flag,
    to_ids,
    to_integer,
    to_number,
    to_sequence,
    to_strings,
    to_text,
)
from baton._constrain import to_constraint
from baton._prompt import add_prompt
from baton.constraints import Constraint
from baton.events import ResumeFrom
from baton.prompts import Prompt
from baton.v1 import inference_pb2, sampling_pb2

_CLASSES = {
    "interactive": inference_pb2.REQUEST_CLASS_INTERACTIVE,
    "batch": inference_pb2.REQUEST_CLASS_BATCH,
}


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `generate` and `complete`; what is not given, the router decides.

    Ranges are those of `baton.v1.SamplingParams` and `GenerateRequest`.
    """

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    min_tokens: int | None
    ignore_eos: bool
    logprobs: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    """Token ids, and what is added to their logits."""
    bad_words: str | Sequence[str] | None
    bad_sequences: Sequence[Sequence[int]] | None
    n: int | None
    best_of: int | None
    echo: bool
    prompt_logprobs: int | None
    constraint: Constraint | None
    """What the output must be."""
    request_id: str | None
    model: str | None
    request_class: Literal["interactive", "batch"] | None
    ttft_target: float | None
    """Time to first token to hold, in seconds."""
    itl_target: float | None
    """Inter-token latency to hold, in seconds."""
    priority: int | None
    tenant: str | None
    resume_from: ResumeFrom | None
    timeout: float | None
    metadata: Mapping[str, str] | None
    """Sent with the call, under lower-case names."""


_NUMBERS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_OPTIONS = GenerateOptions.__optional_keys__


def to_request(prompt: Prompt, options: Mapping[str, Any]) -> inference_pb2.GenerateRequest:
    """The message for a prompt and `GenerateOptions`.

    Raises TypeError naming the argument of a wrong type, and InvalidRequest naming the field
    that the wire cannot carry (a negative count, text with lone surrogates).
    """
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"unknown argument {name!r}; known: {', '.join(sorted(_OPTIONS))}")
    request = inference_pb2.GenerateRequest(sampling=_sampling(options))
    if (request_id := options.get("request_id")) is not None:
        request.request_id = to_text("request_id", "request_id", request_id)
    if (model := options.get("model")) is not None:
        request.model = to_text("model", "model", model)
    for name in ("n", "best_of"):
        if (count := options.get(name)) is not None:
            setattr(request, name, to_integer(name, name, count, UINT32_MAX))
    if request.n == 0 and options.get("n") is not None:
        raise errors.InvalidRequest("n", "must be at least 1, not 0")
    request.echo = to_flag(options, "echo")
    request.stop.extend(to_strings(options, "stop"))
    request.bad_words.extend(to_strings(options, "bad_words"))
    _add_urgency(request, options)
    _add_resume(request, options.get("resume_from"))
    add_prompt(request, prompt)
    return request


def _add_urgency(request: inference_pb2.GenerateRequest, options: Mapping[str, Any]) -> None:
    if (name := options.get("request_class")) is not None:
        known = _CLASSES.get(to_text("request_class", "request_class", name))
        if known is None:
            raise errors.InvalidRequest("request_class", f"must be one of {', '.join(_CLASSES)}")
        request.request_class = known
    if (ttft := options.get("ttft_target")) is not None:
        request.ttft_target.CopyFrom(to_duration("ttft_target", ttft))
    if (itl := options.get("itl_target")) is not None:
        request.itl_target.CopyFrom(to_duration("itl_target", itl))
    if (priority := options.get("priority")) is not None:
        request.priority = to_integer("priority", "priority", priority, INT32_MAX, -INT32_MAX)
    if (tenant := options.get("tenant")) is not None:
        request.tenant = to_text("tenant", "tenant", tenant)


def _add_resume(request: inference_pb2.GenerateRequest, resume: Any) -> None:
    if resume is None:
        return
    if not isinstance(resume, ResumeFrom):
        raise TypeError(f"resume_from: expected a ResumeFrom, got {kind_of(resume)}")
    seed = to_integer("resume_from.seed", "resume_from.seed", resume.seed, UINT64_MAX)
    request.resume_from.seed = seed
    for position, ids in enumerate(to_sequence("resume_from.emitted", resume.emitted)):
        name = f"resume_from.emitted[{position}]"
        request.resume_from.emitted.add(ids=to_ids(name, f"{name}.ids", to_sequence(name, ids)))


def _sampling(options: Mapping[str, Any]) -> sampling_pb2.SamplingParams:
    sampling = sampling_pb2.SamplingParams()
    for name in ("max_tokens", "min_tokens", "top_k", "logprobs", "prompt_logprobs", "seed"):
        if (count := options.get(name)) is not None:
            largest = UINT64_MAX if name == "seed" else UINT32_MAX
            setattr(sampling, name, to_integer(name, f"sampling.{name}", count, largest))
    for name in _NUMBERS:
        if (number := options.get(name)) is not None:
            setattr(sampling, name, to_number(name, number))
    sampling.ignore_eos = to_flag(options, "ignore_eos")
    stop_ids = to_sequence("stop_token_ids", options.get("stop_token_ids"))
    sampling.stop_token_ids.extend(to_ids("stop_token_ids", "sampling.stop_token_ids", stop_ids))
    biases = options.get("logit_bias")
    if biases is not None and not isinstance(biases, Mapping):
        raise TypeError(f"logit_bias: expected a mapping, got {kind_of(biases)}")
    for token_id, bias in (biases or {}).items():
        argument = f"logit_bias[{token_id!r:.40}]"
        known = to_integer(argument, f"sampling.{argument}", token_id, UINT32_MAX)
        sampling.logit_bias[known] = to_number(argument, bias)
    sequences = to_sequence("bad_sequences", options.get("bad_sequences"))
    for position, sequence in enumerate(sequences):
        argument = f"bad_sequences[{position}]"
        ids = to_ids(argument, f"sampling.{argument}.token_ids", to_sequence(argument, sequence))
        sampling.bad_sequences.add(token_ids=ids)
    if (constraint := options.get("constraint")) is not None:
        sampling.constraint.CopyFrom(to_constraint(constraint))
    return sampling
