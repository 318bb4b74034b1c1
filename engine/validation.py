"""What is wrong with a request, if anything. Knows limits; no state."""

import math

from engine.errors import RequestError
from engine.types import Limits, Request, SamplingParams

MAX_LOGPROBS = 20


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
    _require(
        request.life_tokens <= limits.context_tokens,
        "prompt",
        f"{len(request.prompt)} tokens and up to {request.life_tokens - len(request.prompt)} of "
        f"output are more than the context of {limits.context_tokens}",
    )


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
    if params.logprobs is not None:
        require(0 <= params.logprobs <= MAX_LOGPROBS, "logprobs", f"must be 0 to {MAX_LOGPROBS}")


def _require(condition: bool, field: str, message: str) -> None:
    if not condition:
        raise RequestError(field, message)
