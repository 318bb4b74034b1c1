"""Checks sampling parameters, and fills in what is absent.

What a request leaves out is as the model's makers recommend, else neutral. Errors name the
field by its path in `baton.v1.GenerateRequest`. Knows no prompt and no protobuf types.
"""

import math
import secrets
from dataclasses import replace
from typing import Any

from baton.errors import InvalidRequest
from services.common.constraints import check_constraint
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
from services.common.text import SamplingDefaults
from services.router.request import ModelLimits, Sampling, SamplingFields

TokenSequence = tuple[int, ...]
"""Token ids in order."""

MAX_SEED = (1 << 64) - 1
_DRAWN_SEED_BITS = 53


def with_defaults(
    given: SamplingFields, defaults: SamplingDefaults, limits: ModelLimits
) -> SamplingFields:
    """`given`, and what the model recommends for the fields that it leaves out."""
    recommended: dict[str, Any] = {
        "temperature": defaults.temperature,
        "top_k": None if defaults.top_k is None else min(defaults.top_k, limits.vocab_size),
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "repetition_penalty": defaults.repetition_penalty,
    }
    absent = {name: value for name, value in recommended.items() if getattr(given, name) is None}
    return replace(given, **absent)


def check_sampling(given: SamplingFields, limits: ModelLimits) -> Sampling:
    """Sampling parameters with every default filled in and a seed drawn where there is none.

    Raises InvalidRequest, which names the field.
    """
    temperature = _number("temperature", given.temperature, 1.0, 0.0, MAX_TEMPERATURE)
    top_k = _whole("top_k", given.top_k, 0, limits.vocab_size)
    top_p = _number("top_p", given.top_p, 1.0, 0.0, 1.0)
    if top_p == 0.0:
        raise InvalidRequest("sampling.top_p", "0 keeps no token: it must be above 0")
    min_p = _number("min_p", given.min_p, 0.0, 0.0, 1.0)
    seed = secrets.randbits(_DRAWN_SEED_BITS) if given.seed is None else given.seed
    _whole("seed", seed, 0, MAX_SEED)
    min_tokens = _output_length(given)
    _check_stop_token_ids(given.stop_token_ids, limits)
    _check_logprobs("logprobs", given.logprobs)
    repetition_penalty = _number(
        "repetition_penalty", given.repetition_penalty, 1.0, 0.0, MAX_REPETITION_PENALTY
    )
    if repetition_penalty == 0.0:
        raise InvalidRequest("sampling.repetition_penalty", "0 is no penalty: it must be above 0")
    presence_penalty, frequency_penalty = (
        _number(name, getattr(given, name), 0.0, -MAX_PENALTY, MAX_PENALTY)
        for name in ("presence_penalty", "frequency_penalty")
    )
    _check_logit_bias(given.logit_bias, limits)
    _check_bad_sequences(given.bad_sequences, limits)
    _check_logprobs("prompt_logprobs", given.prompt_logprobs)
    if given.constraint is not None:
        check_constraint("sampling.constraint", given.constraint)
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
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=given.logit_bias,
        bad_sequences=given.bad_sequences,
        prompt_logprobs=given.prompt_logprobs,
        constraint=given.constraint,
    )


def check_vocabulary(name: str, ids: TokenSequence, limits: ModelLimits) -> None:
    """Raises InvalidRequest naming the first of `ids` (not empty) that is no token id."""
    if min(ids) >= 0 and max(ids) < limits.vocab_size:
        return
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < limits.vocab_size:
            raise InvalidRequest(f"{name}[{index}]", _no_token(token_id, limits))


def _no_token(token_id: int, limits: ModelLimits) -> str:
    return f"{token_id} is no token id: they go from 0 to {limits.vocab_size - 1}"


def _output_length(given: SamplingFields) -> int:
    if given.max_tokens is not None and given.max_tokens < 1:
        raise InvalidRequest("sampling.max_tokens", f"{given.max_tokens} is less than 1")
    min_tokens = _whole("min_tokens", given.min_tokens, 0, None)
    if given.max_tokens is not None and min_tokens > given.max_tokens:
        raise InvalidRequest(
            "sampling.min_tokens",
            f"{min_tokens} is more than max_tokens, which is {given.max_tokens}",
        )
    return min_tokens


def _check_stop_token_ids(ids: TokenSequence, limits: ModelLimits) -> None:
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            "sampling.stop_token_ids", f"{len(ids)} ids are more than {MAX_STOP_TOKEN_IDS}"
        )
    if ids:
        check_vocabulary("sampling.stop_token_ids", ids, limits)


def _check_logprobs(name: str, value: int | None) -> None:
    if value is not None:
        _whole(name, value, 0, MAX_LOGPROBS)


def _check_logit_bias(biases: tuple[tuple[int, float], ...], limits: ModelLimits) -> None:
    name = "sampling.logit_bias"
    if len(biases) > MAX_BIASES:
        raise InvalidRequest(name, f"{len(biases)} biases are more than {MAX_BIASES}")
    for token_id, bias in biases:
        if not 0 <= token_id < limits.vocab_size:
            raise InvalidRequest(f"{name}[{token_id}]", _no_token(token_id, limits))
        _number(f"logit_bias[{token_id}]", bias, 0.0, -MAX_BIAS, MAX_BIAS)


def _check_bad_sequences(sequences: tuple[TokenSequence, ...], limits: ModelLimits) -> None:
    name = "sampling.bad_sequences"
    if len(sequences) > MAX_BAD_SEQUENCES:
        raise InvalidRequest(name, f"{len(sequences)} sequences are more than {MAX_BAD_SEQUENCES}")
    for index, sequence in enumerate(sequences):
        if not 1 <= len(sequence) <= MAX_BAD_SEQUENCE_TOKENS:
            raise InvalidRequest(
                f"{name}[{index}]",
                f"has {len(sequence)} tokens, not 1 to {MAX_BAD_SEQUENCE_TOKENS}",
            )
        check_vocabulary(f"{name}[{index}].token_ids", sequence, limits)


def _number(name: str, value: float | None, default: float, least: float, most: float) -> float:
    if value is None:
        return default
    if not math.isfinite(value):
        raise InvalidRequest(f"sampling.{name}", f"{value} is not a finite number")
    if not least <= value <= most:
        raise InvalidRequest(f"sampling.{name}", f"{value:g} is not between {least:g} and {most:g}")
    return value


def _whole(name: str, value: int | None, least: int, most: int | None) -> int:
    if value is None:
        return least
    if value < least or (most is not None and value > most):
        limit = f"between {least} and {most}" if most is not None else f"at least {least}"
        raise InvalidRequest(f"sampling.{name}", f"{value} is not {limit}")
    return value
