"""Between the client's values and protobuf messages, for both clients.

Checks types, and what the wire cannot carry; whether values make sense the router decides.
Knows no channels and no calls.
"""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, TypedDict

from google.protobuf import duration_pb2

from baton import errors, events
from baton.v1 import inference_pb2, sampling_pb2

_UINT32_MAX = 2**32 - 1
_UINT64_MAX = 2**64 - 1


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
    request_id: str | None
    model: str | None
    timeout: float | None


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
    stop = options.get("stop")
    for position, text in enumerate(_sequence("stop", [stop] if isinstance(stop, str) else stop)):
        request.stop.append(_text(f"stop[{position}]", f"stop[{position}]", text))
    _add_prompt(request, prompt)
    return request


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
    for name in ("max_tokens", "min_tokens", "top_k", "logprobs", "seed"):
        if (count := options.get(name)) is not None:
            largest = _UINT64_MAX if name == "seed" else _UINT32_MAX
            setattr(sampling, name, _integer(name, f"sampling.{name}", count, largest))
    for name in ("temperature", "top_p", "min_p"):
        if (number := options.get(name)) is not None:
            if isinstance(number, bool) or not hasattr(number, "__float__"):
                raise TypeError(f"{name}: expected a number, got {_kind(number)}")
            setattr(sampling, name, float(number))
    ignore_eos = options.get("ignore_eos", False)
    if not isinstance(ignore_eos, bool):
        raise TypeError(f"ignore_eos: expected a bool, got {_kind(ignore_eos)}")
    sampling.ignore_eos = ignore_eos
    stop_ids = _sequence("stop_token_ids", options.get("stop_token_ids"))
    sampling.stop_token_ids.extend(_ids("stop_token_ids", "sampling.stop_token_ids", stop_ids))
    return sampling


def to_timeout(timeout: Any) -> float | None:
    """Checks a deadline in seconds."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout: expected seconds, got {_kind(timeout)}")
    return float(timeout)


def _sequence(argument: str, value: Any) -> Sequence[Any]:
    if value is None and argument != "prompt":
        return ()
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        wanted = "text, token ids or messages" if argument == "prompt" else "a sequence"
        raise TypeError(f"{argument}: expected {wanted}, got {_kind(value)}")
    return value if isinstance(value, Sequence) else tuple(value)


def _integer(argument: str, field: str, value: Any, largest: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument}: expected an int, got {_kind(value)}")
    number = index(value)
    if not 0 <= number <= largest:
        raise errors.InvalidRequest(field, f"must be from 0 to {largest}, not {number}")
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


def to_event(response: inference_pb2.GenerateResponse) -> events.Event | None:
    """The event of a message; None for a kind that this client does not know."""
    kind = response.WhichOneof("event")
    if kind == "delta":
        return events.Delta(response.delta.text, tuple(map(_token, response.delta.tokens)))
    if kind == "completed":
        return _completed(response.completed)
    return None


def _token(token: sampling_pb2.SampledToken) -> events.Token:
    return events.Token(
        token.token_id,
        token.logprob if token.HasField("logprob") else None,
        tuple(events.TokenLogprob(top.token_id, top.logprob) for top in token.top_logprobs),
    )


_FINISH_REASONS = {
    sampling_pb2.FINISH_REASON_STOP: events.FinishReason.STOP,
    sampling_pb2.FINISH_REASON_LENGTH: events.FinishReason.LENGTH,
}


def _completed(completed: inference_pb2.GenerateCompleted) -> events.Completed:
    reason = _FINISH_REASONS.get(completed.finish_reason)
    if reason is None:
        raise errors.InternalError(f"unknown finish reason {completed.finish_reason}")
    return events.Completed(
        finish_reason=reason,
        stop_string=completed.stop_string if completed.HasField("stop_string") else None,
        usage=events.Usage(
            completed.usage.prompt_tokens,
            completed.usage.completion_tokens,
            completed.usage.cached_tokens,
        ),
        timings=_timings(completed.timings),
        request_id=completed.request_id,
        seed=completed.seed,
    )


def _timings(timings: inference_pb2.Timings) -> events.Timings:
    return events.Timings(
        queue=seconds(timings.queue),
        prefill=seconds(timings.prefill),
        time_to_first_token=seconds(timings.time_to_first_token),
        handoff_gap=seconds(timings.handoff_gap) if timings.HasField("handoff_gap") else None,
        total=seconds(timings.total),
        prefill_worker=timings.prefill_worker,
        decode_worker=timings.decode_worker,
        prefill_attempts=timings.prefill_attempts,
        decode_attempts=timings.decode_attempts,
    )


def seconds(duration: duration_pb2.Duration) -> float:
    """A duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


def to_model(response: inference_pb2.GetModelResponse) -> events.Model:
    """The model of a message."""
    return events.Model(
        name=response.model.name,
        vocab_size=response.model.vocab_size,
        context_tokens=response.model.context_tokens,
        eos_token_ids=frozenset(response.model.eos_token_ids),
        has_chat_template=response.has_chat_template,
        default_max_tokens=response.default_max_tokens,
    )
