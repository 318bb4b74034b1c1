"""From the client's values to request messages, for both clients.

Checks types, and what the wire cannot carry; whether values make sense the router decides.
Knows no channels and no calls.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from operator import index
from typing import Any, Literal, NamedTuple, TypedDict

from google.protobuf import duration_pb2

from baton import errors
from baton.events import ResumeFrom
from baton.v1 import inference_pb2, sampling_pb2

_UINT32_MAX = 2**32 - 1
_UINT64_MAX = 2**64 - 1
_INT32_MAX = 2**31 - 1
_DURATION_MAX_S = 315_576_000_000
_CLASSES = {
    "interactive": inference_pb2.REQUEST_CLASS_INTERACTIVE,
    "batch": inference_pb2.REQUEST_CLASS_BATCH,
}


class Message(NamedTuple):
    """One message of a conversation; a mapping with the same keys does as well."""

    role: str
    content: str


ChatMessage = Message | Mapping[str, str] | tuple[str, str]
Prompt = str | Sequence[int] | Sequence[ChatMessage]
"""Text, token ids or a conversation."""


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
        request.request_id = _text("request_id", "request_id", request_id)
    if (model := options.get("model")) is not None:
        request.model = _text("model", "model", model)
    for name in ("n", "best_of"):
        if (count := options.get(name)) is not None:
            setattr(request, name, _integer(name, name, count, _UINT32_MAX))
    if request.n == 0 and options.get("n") is not None:
        raise errors.InvalidRequest("n", "must be at least 1, not 0")
    request.echo = _flag(options, "echo")
    request.stop.extend(_strings(options, "stop"))
    request.bad_words.extend(_strings(options, "bad_words"))
    _add_urgency(request, options)
    _add_resume(request, options.get("resume_from"))
    _add_prompt(request, prompt)
    return request


def _add_urgency(request: inference_pb2.GenerateRequest, options: Mapping[str, Any]) -> None:
    if (name := options.get("request_class")) is not None:
        known = _CLASSES.get(_text("request_class", "request_class", name))
        if known is None:
            raise errors.InvalidRequest("request_class", f"must be one of {', '.join(_CLASSES)}")
        request.request_class = known
    if (ttft := options.get("ttft_target")) is not None:
        request.ttft_target.CopyFrom(_duration("ttft_target", ttft))
    if (itl := options.get("itl_target")) is not None:
        request.itl_target.CopyFrom(_duration("itl_target", itl))
    if (priority := options.get("priority")) is not None:
        request.priority = _integer("priority", "priority", priority, _INT32_MAX, -_INT32_MAX)
    if (tenant := options.get("tenant")) is not None:
        request.tenant = _text("tenant", "tenant", tenant)


def _add_resume(request: inference_pb2.GenerateRequest, resume: Any) -> None:
    if resume is None:
        return
    if not isinstance(resume, ResumeFrom):
        raise TypeError(f"resume_from: expected a ResumeFrom, got {_kind(resume)}")
    seed = _integer("resume_from.seed", "resume_from.seed", resume.seed, _UINT64_MAX)
    request.resume_from.seed = seed
    for position, ids in enumerate(_sequence("resume_from.emitted", resume.emitted)):
        name = f"resume_from.emitted[{position}]"
        request.resume_from.emitted.add(ids=_ids(name, f"{name}.ids", _sequence(name, ids)))


def _add_prompt(request: inference_pb2.GenerateRequest, prompt: Any) -> None:
    if isinstance(prompt, str):
        request.text = _text("prompt", "text", prompt)
        return
    items = _sequence("prompt", prompt)
    if items and isinstance(items[0], Mapping | tuple):
        for position, item in enumerate(items):
            role, content = _message(f"prompt[{position}]", item)
            path = f"chat.messages[{position}]"
            request.chat.messages.add(
                role=_text(f"prompt[{position}].role", f"{path}.role", role),
                content=_text(f"prompt[{position}].content", f"{path}.content", content),
            )
        return
    request.token_ids.SetInParent()
    request.token_ids.ids.extend(_ids("prompt", "token_ids.ids", items))


def _message(argument: str, item: Any) -> tuple[Any, Any]:
    if isinstance(item, Mapping) and item.keys() == {"role", "content"}:
        return item["role"], item["content"]
    if isinstance(item, tuple) and len(item) == 2:
        return item[0], item[1]
    raise TypeError(f"{argument}: expected a message with `role` and `content`, got {item!r:.80}")


def _sampling(options: Mapping[str, Any]) -> sampling_pb2.SamplingParams:
    sampling = sampling_pb2.SamplingParams()
    for name in ("max_tokens", "min_tokens", "top_k", "logprobs", "prompt_logprobs", "seed"):
        if (count := options.get(name)) is not None:
            largest = _UINT64_MAX if name == "seed" else _UINT32_MAX
            setattr(sampling, name, _integer(name, f"sampling.{name}", count, largest))
    for name in _NUMBERS:
        if (number := options.get(name)) is not None:
            setattr(sampling, name, _number(name, number))
    sampling.ignore_eos = _flag(options, "ignore_eos")
    stop_ids = _sequence("stop_token_ids", options.get("stop_token_ids"))
    sampling.stop_token_ids.extend(_ids("stop_token_ids", "sampling.stop_token_ids", stop_ids))
    biases = options.get("logit_bias")
    if biases is not None and not isinstance(biases, Mapping):
        raise TypeError(f"logit_bias: expected a mapping, got {_kind(biases)}")
    for token_id, bias in (biases or {}).items():
        argument = f"logit_bias[{token_id!r:.40}]"
        known = _integer(argument, f"sampling.{argument}", token_id, _UINT32_MAX)
        sampling.logit_bias[known] = _number(argument, bias)
    sequences = _sequence("bad_sequences", options.get("bad_sequences"))
    for position, sequence in enumerate(sequences):
        argument = f"bad_sequences[{position}]"
        ids = _ids(argument, f"sampling.{argument}.token_ids", _sequence(argument, sequence))
        sampling.bad_sequences.add(token_ids=ids)
    return sampling


def to_timeout(timeout: Any) -> float | None:
    """Checks a deadline in seconds."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout: expected seconds, got {_kind(timeout)}")
    return float(timeout)


def _sequence(argument: str, value: Any) -> Sequence[Any]:
    if value is None and argument != "prompt" and not argument.endswith("]"):
        return ()
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        wanted = "text, token ids or messages" if argument == "prompt" else "a sequence"
        raise TypeError(f"{argument}: expected {wanted}, got {_kind(value)}")
    return value if isinstance(value, Sequence) else tuple(value)


def _strings(options: Mapping[str, Any], name: str) -> list[str]:
    """An option that is one string or several."""
    given = options.get(name)
    strings = _sequence(name, [given] if isinstance(given, str) else given)
    names = [f"{name}[{position}]" for position in range(len(strings))]
    return [_text(at, at, text) for at, text in zip(names, strings, strict=True)]


def _flag(options: Mapping[str, Any], name: str) -> bool:
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected a bool, got {_kind(value)}")
    return value


def _number(argument: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{argument}: expected a number, got {_kind(value)}")
    return float(value)


def _duration(argument: str, value: Any) -> duration_pb2.Duration:
    seconds = _number(argument, value)
    if not isfinite(seconds) or abs(seconds) > _DURATION_MAX_S:
        raise errors.InvalidRequest(argument, f"{seconds} s is not a duration")
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _integer(argument: str, field: str, value: Any, largest: int, least: int = 0) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument}: expected an int, got {_kind(value)}")
    number = index(value)
    if not least <= number <= largest:
        raise errors.InvalidRequest(field, f"must be from {least} to {largest}, not {number}")
    return number


def _ids(argument: str, field: str, items: Sequence[Any]) -> Sequence[int]:
    if all(type(item) is int and 0 <= item <= _UINT32_MAX for item in items):
        return items
    return [
        _integer(f"{argument}[{position}]", f"{field}[{position}]", item, _UINT32_MAX)
        for position, item in enumerate(items)
    ]


def _text(argument: str, field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{argument}: expected a str, got {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise errors.InvalidRequest(field, "is not valid Unicode text") from error
    return value


def _kind(value: object) -> str:
    return type(value).__name__
