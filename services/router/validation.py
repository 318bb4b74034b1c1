"""Checks a request against the model's limits, before anything is spent on it.

Two steps, since tokenizing comes between them:

    checked = check_request(fields, limits)         cheap; refuses what can never work
    ids = tokenize checked.prompt                    the caller's, in a thread where it is long
    generation = check_prompt(checked, ids, limits)  lengths: prompt, max_tokens, min_tokens

Checks come in a fixed order (request_id, model, input, sampling in the order of its fields,
stop; then the prompt's length, max_tokens, min_tokens), so that the same bad request always
gets the same answer. Errors name the field by its path in `baton.v1.GenerateRequest`.

Knows no protobuf types, no tokenizer and no worker: plain values in, frozen dataclasses out
(`services.router.request`).
"""

import math
import re
import secrets
from collections.abc import Sequence

from baton import naming
from baton.errors import InvalidRequest, NotFound
from services.router.request import (
    ChatPrompt,
    CheckedRequest,
    Generation,
    ModelLimits,
    Prompt,
    RequestFields,
    Sampling,
    SamplingFields,
    TextPrompt,
    TokenPrompt,
)

__all__ = [
    "ChatPrompt",
    "CheckedRequest",
    "Generation",
    "ModelLimits",
    "Prompt",
    "RequestFields",
    "Sampling",
    "SamplingFields",
    "TextPrompt",
    "TokenPrompt",
    "check_prompt",
    "check_request",
    "prompt_field",
]

MAX_TEMPERATURE = 100.0
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_ROLE_CHARACTERS = 64
MAX_SEED = (1 << 64) - 1
_DRAWN_SEED_BITS = 53
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]+")


def check_request(fields: RequestFields, limits: ModelLimits) -> CheckedRequest:
    """Checks all that needs no tokenizer, and draws the request id and seed where absent.

    Raises InvalidRequest, which names the field, or NotFound for another model's name.
    """
    request_id = _request_id(fields.request_id)
    if fields.model not in ("", limits.name):
        raise NotFound(
            f"model: {_shown(fields.model)} is not served here; {limits.name!r} is",
            reason="UNKNOWN_MODEL",
            field="model",
        )
    prompt = _prompt(fields.prompt, limits)
    sampling = _sampling(fields.sampling, limits)
    _check_stops(fields.stop)
    return CheckedRequest(request_id, prompt, sampling, fields.sampling.max_tokens, fields.stop)


def check_prompt(
    checked: CheckedRequest, prompt_ids: Sequence[int], limits: ModelLimits
) -> Generation:
    """Checks that prompt and output fit the context, and settles max_tokens.

    Raises InvalidRequest naming the prompt's field, sampling.max_tokens or sampling.min_tokens.
    """
    count, context = len(prompt_ids), limits.context_tokens
    name = prompt_field(checked.prompt)
    if count == 0:
        raise InvalidRequest(name, "no tokens are left of it once it is tokenized")
    room = context - count
    if room < 1:
        raise InvalidRequest(
            name,
            f"{count} tokens are too long a prompt: the context has {context} tokens, "
            "and at least one must be left for the output",
        )
    max_tokens = checked.max_tokens
    if max_tokens is None:
        max_tokens = min(limits.default_max_tokens, room)
    elif max_tokens > room:
        raise InvalidRequest(
            "sampling.max_tokens",
            f"{count} tokens of prompt and {max_tokens} of output are {count + max_tokens}: "
            f"more than the context's {context} tokens; at most {room} have room",
        )
    if checked.sampling.min_tokens > max_tokens:
        raise InvalidRequest(
            "sampling.min_tokens",
            f"{checked.sampling.min_tokens} is more than max_tokens, which is {max_tokens}",
        )
    return Generation(
        checked.request_id, tuple(prompt_ids), checked.sampling, max_tokens, checked.stop
    )


def prompt_field(prompt: Prompt) -> str:
    """Name of the request's field that holds `prompt`."""
    match prompt:
        case TextPrompt():
            return "text"
        case ChatPrompt():
            return "chat"
        case TokenPrompt():
            return "token_ids"


def _request_id(request_id: str) -> naming.RequestId:
    if not request_id:
        return naming.RequestId(naming.new_id("req"))
    most = naming.MAX_REQUEST_ID_CHARACTERS
    if len(request_id) > most:
        raise InvalidRequest("request_id", f"{len(request_id)} characters are more than {most}")
    if not _REQUEST_ID.fullmatch(request_id):
        raise InvalidRequest("request_id", "has characters other than A-Z a-z 0-9 . _ : -")
    return naming.RequestId(request_id)


def _prompt(prompt: Prompt | None, limits: ModelLimits) -> Prompt:
    match prompt:
        case None:
            raise InvalidRequest("input", "none of text, chat and token_ids is set")
        case TextPrompt(text):
            if not text:
                raise InvalidRequest("text", "is empty")
            _check_characters("text", len(text), limits)
            _check_unicode("text", text)
        case ChatPrompt(messages):
            _check_messages(messages, limits)
        case TokenPrompt(ids):
            _check_ids(ids, limits)
    return prompt


def _check_characters(name: str, count: int, limits: ModelLimits) -> None:
    if count > limits.max_characters:
        raise InvalidRequest(
            name,
            f"{count} characters can never fit a context of {limits.context_tokens} tokens "
            f"(at most {limits.max_characters} can)",
        )


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(name, f"is not valid Unicode at character {error.start}") from None


def _check_messages(messages: tuple[tuple[str, str], ...], limits: ModelLimits) -> None:
    if not messages:
        raise InvalidRequest("chat.messages", "is empty")
    if len(messages) > limits.context_tokens:
        raise InvalidRequest(
            "chat.messages",
            f"{len(messages)} messages can never fit a context of {limits.context_tokens} tokens",
        )
    _check_characters("chat.messages", sum(len(content) for _, content in messages), limits)
    for index, (role, content) in enumerate(messages):
        name = f"chat.messages[{index}]"
        if not role:
            raise InvalidRequest(f"{name}.role", "is empty")
        if len(role) > MAX_ROLE_CHARACTERS:
            raise InvalidRequest(
                f"{name}.role", f"{len(role)} characters are more than {MAX_ROLE_CHARACTERS}"
            )
        _check_unicode(f"{name}.role", role)
        _check_unicode(f"{name}.content", content)


def _check_ids(ids: tuple[int, ...], limits: ModelLimits) -> None:
    if not ids:
        raise InvalidRequest("token_ids", "is empty")
    if len(ids) >= limits.context_tokens:
        raise InvalidRequest(
            "token_ids",
            f"{len(ids)} tokens are too long a prompt: the context has {limits.context_tokens} "
            "tokens, and at least one must be left for the output",
        )
    _check_vocabulary("token_ids.ids", ids, limits)


def _check_vocabulary(name: str, ids: tuple[int, ...], limits: ModelLimits) -> None:
    if min(ids) >= 0 and max(ids) < limits.vocab_size:
        return
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < limits.vocab_size:
            raise InvalidRequest(
                f"{name}[{index}]",
                f"{token_id} is no token id: they go from 0 to {limits.vocab_size - 1}",
            )


def _sampling(given: SamplingFields, limits: ModelLimits) -> Sampling:
    temperature = _number("temperature", given.temperature, 1.0, MAX_TEMPERATURE)
    top_k = _whole("top_k", given.top_k, 0, limits.vocab_size)
    top_p = _number("top_p", given.top_p, 1.0, 1.0)
    if top_p == 0.0:
        raise InvalidRequest("sampling.top_p", "0 keeps no token: it must be above 0")
    min_p = _number("min_p", given.min_p, 0.0, 1.0)
    seed = secrets.randbits(_DRAWN_SEED_BITS) if given.seed is None else given.seed
    _whole("seed", seed, 0, MAX_SEED)
    if given.max_tokens is not None and given.max_tokens < 1:
        raise InvalidRequest("sampling.max_tokens", f"{given.max_tokens} is less than 1")
    min_tokens = _whole("min_tokens", given.min_tokens, 0, None)
    if given.max_tokens is not None and min_tokens > given.max_tokens:
        raise InvalidRequest(
            "sampling.min_tokens",
            f"{min_tokens} is more than max_tokens, which is {given.max_tokens}",
        )
    if len(given.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            "sampling.stop_token_ids",
            f"{len(given.stop_token_ids)} ids are more than {MAX_STOP_TOKEN_IDS}",
        )
    if given.stop_token_ids:
        _check_vocabulary("sampling.stop_token_ids", given.stop_token_ids, limits)
    if given.logprobs is not None:
        _whole("logprobs", given.logprobs, 0, MAX_LOGPROBS)
    return Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        min_tokens=min_tokens,
        stop_token_ids=given.stop_token_ids,
        ignore_eos=given.ignore_eos,
        logprobs=given.logprobs,
    )


def _number(name: str, value: float | None, default: float, most: float) -> float:
    if value is None:
        return default
    if not math.isfinite(value):
        raise InvalidRequest(f"sampling.{name}", f"{value} is not a finite number")
    if not 0.0 <= value <= most:
        raise InvalidRequest(f"sampling.{name}", f"{value:g} is not between 0 and {most:g}")
    return value


def _whole(name: str, value: int | None, least: int, most: int | None) -> int:
    if value is None:
        return least
    if value < least or (most is not None and value > most):
        limit = f"between {least} and {most}" if most is not None else f"at least {least}"
        raise InvalidRequest(f"sampling.{name}", f"{value} is not {limit}")
    return value


def _check_stops(stops: tuple[str, ...]) -> None:
    if len(stops) > MAX_STOPS:
        raise InvalidRequest("stop", f"{len(stops)} stop strings are more than {MAX_STOPS}")
    for index, stop in enumerate(stops):
        if not stop:
            raise InvalidRequest(f"stop[{index}]", "is empty")
        if len(stop) > MAX_STOP_CHARACTERS:
            raise InvalidRequest(
                f"stop[{index}]", f"{len(stop)} characters are more than {MAX_STOP_CHARACTERS}"
            )
        _check_unicode(f"stop[{index}]", stop)


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}..."
