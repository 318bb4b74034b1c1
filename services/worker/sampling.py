"""Sampling parameters as they come in, checked against the limits that their .proto states.

Reads wire messages, answers engine values; knows no request and no role.
"""

import math
from collections.abc import Mapping, Sequence

from baton.errors import InvalidRequest
from baton.v1 import sampling_pb2
from engine.types import Limits, SamplingParams
from services.common import constraints
from services.common.constraints import Constraint
from services.common.rpc import MAX_MESSAGE_BYTES
from services.common.sampling_limits import (
    MAX_BAD_SEQUENCE_TOKENS,
    MAX_BAD_SEQUENCES,
    MAX_BIAS,
    MAX_BIASES,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_STOP_TOKEN_IDS,
    MAX_TEMPERATURE,
)
from services.worker.validation import token_ids

_TOKEN_BYTES = 14
_TOP_BYTES = 13
"""Of a message, at most: what a token with its log probability takes, and each beside it."""


def sampling_params(
    path: str, message: sampling_pb2.SamplingParams, prompt_tokens: int, limits: Limits
) -> SamplingParams:
    """The sampling parameters for a prompt of `prompt_tokens`. Raises InvalidRequest naming
    the field at fault."""
    for name in ("seed", "max_tokens"):
        if not message.HasField(name):
            raise InvalidRequest(f"{path}.{name}", "must be set")
    room = limits.context_tokens - prompt_tokens
    max_tokens = _within(f"{path}.max_tokens", message.max_tokens, 1, room)
    if len(message.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(f"{path}.stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS}")
    stops = token_ids(f"{path}.stop_token_ids", message.stop_token_ids, limits)
    params = SamplingParams(
        temperature=_number(f"{path}.temperature", message.temperature, 0.0, MAX_TEMPERATURE)
        if message.HasField("temperature")
        else 1.0,
        top_k=_within(f"{path}.top_k", message.top_k, 0, limits.vocab_size),
        top_p=_above_zero(f"{path}.top_p", message.top_p, 1.0)
        if message.HasField("top_p")
        else 1.0,
        min_p=_number(f"{path}.min_p", message.min_p, 0.0, 1.0),
        seed=message.seed,
        max_tokens=max_tokens,
        min_tokens=_within(f"{path}.min_tokens", message.min_tokens, 0, max_tokens),
        stop_token_ids=frozenset(stops),
        ignore_eos=message.ignore_eos,
        logprobs=_within(f"{path}.logprobs", message.logprobs, 0, MAX_LOGPROBS)
        if message.HasField("logprobs")
        else None,
        repetition_penalty=_above_zero(
            f"{path}.repetition_penalty", message.repetition_penalty, MAX_REPETITION_PENALTY
        )
        if message.HasField("repetition_penalty")
        else 1.0,
        presence_penalty=_penalty(f"{path}.presence_penalty", message.presence_penalty),
        frequency_penalty=_penalty(f"{path}.frequency_penalty", message.frequency_penalty),
        logit_bias=_logit_bias(f"{path}.logit_bias", message.logit_bias, limits),
        bad_sequences=_bad_sequences(f"{path}.bad_sequences", message.bad_sequences, limits),
        prompt_logprobs=_prompt_logprobs(
            f"{path}.prompt_logprobs", message.prompt_logprobs, prompt_tokens
        )
        if message.HasField("prompt_logprobs")
        else None,
    )
    _check_something_is_left(f"{path}.bad_sequences", params, limits)
    return params


def constraint_of(path: str, message: sampling_pb2.SamplingParams) -> Constraint | None:
    """The language that outputs are held to. Raises InvalidRequest naming the field at fault."""
    constraint = constraints.constraint_of(message)
    if constraint is not None:
        constraints.check_constraint(path, constraint)
    return constraint


def _penalty(path: str, value: float) -> float:
    return _number(path, value, -MAX_PENALTY, MAX_PENALTY)


def _logit_bias(
    path: str, biases: Mapping[int, float], limits: Limits
) -> tuple[tuple[int, float], ...]:
    if len(biases) > MAX_BIASES:
        raise InvalidRequest(path, f"at most {MAX_BIASES}, not {len(biases)}")
    for token, bias in sorted(biases.items()):
        if token >= limits.vocab_size:
            raise InvalidRequest(
                f"{path}[{token}]", f"is not below the vocabulary's {limits.vocab_size}"
            )
        _number(f"{path}[{token}]", bias, -MAX_BIAS, MAX_BIAS)
    return tuple(sorted(biases.items()))


def _bad_sequences(
    path: str, sequences: Sequence[sampling_pb2.TokenSequence], limits: Limits
) -> tuple[tuple[int, ...], ...]:
    if len(sequences) > MAX_BAD_SEQUENCES:
        raise InvalidRequest(path, f"at most {MAX_BAD_SEQUENCES}, not {len(sequences)}")
    checked: list[tuple[int, ...]] = []
    for index, sequence in enumerate(sequences):
        at = f"{path}[{index}].token_ids"
        if not 1 <= len(sequence.token_ids) <= MAX_BAD_SEQUENCE_TOKENS:
            raise InvalidRequest(
                at, f"must hold 1 to {MAX_BAD_SEQUENCE_TOKENS}, not {len(sequence.token_ids)}"
            )
        checked.append(token_ids(at, sequence.token_ids, limits))
    return tuple(checked)


def _check_something_is_left(path: str, params: SamplingParams, limits: Limits) -> None:
    """A vocabulary is bigger than all masks together; a tiny one may not be."""
    masked = {sequence[-1] for sequence in params.bad_sequences}
    if masked and params.min_tokens:
        masked |= params.stop_token_ids
        masked |= frozenset() if params.ignore_eos else limits.eos_token_ids
    if len(masked) >= limits.vocab_size:
        raise InvalidRequest(path, "must leave a token that can be drawn")


def _prompt_logprobs(path: str, count: int, prompt_tokens: int) -> int:
    """They are told in one message, which has to hold them."""
    _within(path, count, 0, MAX_LOGPROBS)
    room = MAX_MESSAGE_BYTES * 3 // 4
    longest = room // (_TOKEN_BYTES + count * _TOP_BYTES)
    if prompt_tokens > longest:
        raise InvalidRequest(
            path, f"with {count}, a prompt may have {longest} tokens, not {prompt_tokens}"
        )
    return count


def _within(path: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequest(path, f"must be {low} to {high}, not {value}")
    return value


def _number(path: str, value: float, low: float, high: float) -> float:
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequest(path, f"must be {low:g} to {high:g}, not {value}")
    return value


def _above_zero(path: str, value: float, high: float) -> float:
    if not math.isfinite(value) or not 0.0 < value <= high:
        raise InvalidRequest(path, f"must be above 0 and at most {high:g}, not {value}")
    return value
