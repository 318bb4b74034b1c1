"""What is wrong with a request, if anything. Knows limits; no state."""

import math
from typing import Protocol

from engine.errors import RequestError
from engine.types import Limits, Request, SamplingParams

MAX_LOGPROBS = 20
MAX_PENALTY = 2.0
MAX_REPETITION_PENALTY = 10.0
MAX_BIAS = 100.0


def check_request(request: Request, limits: Limits) -> None:
    """Raise RequestError, naming the field, unless an idle engine could serve `request`."""
    _require(len(request.prompt) > 0, "prompt", "must hold at least one token")
    for name in ("prompt", "emitted"):
        tokens = getattr(request, name)
        _require(
            all(0 <= token < limits.vocab_size for token in tokens),
            name,
            f"token ids must be below {limits.vocab_size}",
        )
    _require(request.choice >= 0, "choice", "must not be negative")
    _check_sampling(request.sampling, limits)
    _require(
        len(request.emitted) < request.sampling.max_tokens,
        "sampling.max_tokens",
        f"must be above the {len(request.emitted)} tokens emitted",
    )
    if request.hand_over_after is not None:
        _require(request.hand_over_after >= 1, "hand_over_after", "must be at least 1")
    _require(request.choices >= 1, "choices", "must be at least 1")
    _require(
        request.choices == 1 or (request.hand_over_after == 1 and not request.emitted),
        "choices",
        "above 1 needs a sequence that is handed over after its first token",
    )
    _require(
        request.life_tokens <= limits.context_tokens,
        "prompt",
        f"{len(request.prompt)} tokens and up to {request.life_tokens - len(request.prompt)} of "
        f"output are more than the context of {limits.context_tokens}",
    )


class _Require(Protocol):
    """Raises RequestError about a sampling parameter unless a condition holds."""

    def __call__(self, condition: bool, field: str, message: str) -> None: ...


def _check_sampling(params: SamplingParams, limits: Limits) -> None:
    def require(condition: bool, field: str, message: str) -> None:
        _require(condition, f"sampling.{field}", message)

    temperature = params.temperature
    require(math.isfinite(temperature) and temperature >= 0, "temperature", "must be 0 or more")
    require(params.top_k >= 0, "top_k", "must not be negative")
    require(0 < params.top_p <= 1, "top_p", "must be above 0 and at most 1")
    require(0 <= params.min_p <= 1, "min_p", "must be between 0 and 1")
    require(0 <= params.seed < 2**64, "seed", "must be an unsigned 64-bit number")
    require(params.max_tokens >= 1, "max_tokens", "must be at least 1")
    require(0 <= params.min_tokens <= params.max_tokens, "min_tokens", "must be at most max_tokens")
    require(
        all(0 <= token < limits.vocab_size for token in params.stop_token_ids),
        "stop_token_ids",
        f"token ids must be below {limits.vocab_size}",
    )
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        require(count is None or 0 <= count <= MAX_LOGPROBS, name, f"must be 0 to {MAX_LOGPROBS}")
    _check_changes(params, limits, require)


def _check_changes(params: SamplingParams, limits: Limits, require: _Require) -> None:
    """Checks what changes logits before a token is drawn."""
    require(
        0 < params.repetition_penalty <= MAX_REPETITION_PENALTY,
        "repetition_penalty",
        f"must be above 0 and at most {MAX_REPETITION_PENALTY:g}",
    )
    for name in ("presence_penalty", "frequency_penalty"):
        require(
            -MAX_PENALTY <= getattr(params, name) <= MAX_PENALTY,
            name,
            f"must be {-MAX_PENALTY:g} to {MAX_PENALTY:g}",
        )
    ids = {token for token, _ in params.logit_bias}
    require(len(ids) == len(params.logit_bias), "logit_bias", "must name no token twice")
    require(
        all(-MAX_BIAS <= bias <= MAX_BIAS for _, bias in params.logit_bias),
        "logit_bias",
        f"must be {-MAX_BIAS:g} to {MAX_BIAS:g} for each token",
    )
    below = f"token ids must be below {limits.vocab_size}"
    require(all(0 <= token < limits.vocab_size for token in ids), "logit_bias", below)
    bad = params.bad_sequences
    require(all(bad), "bad_sequences", "must hold no empty sequence")
    require(
        all(0 <= token < limits.vocab_size for sequence in bad for token in sequence),
        "bad_sequences",
        below,
    )
    ends = params.stop_token_ids | (frozenset() if params.ignore_eos else limits.eos_token_ids)
    require(
        len({sequence[-1] for sequence in bad} | (ends if params.min_tokens else set()))
        < limits.vocab_size,
        "bad_sequences",
        "must leave a token that can be drawn",
    )


def _require(condition: bool, field: str, message: str) -> None:
    if not condition:
        raise RequestError(field, message)
