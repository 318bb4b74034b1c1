"""How a sequence changes its logits before a token is drawn: bias and penalties.

    logits + bias ──► repetition penalty ──► presence and frequency penalties

Counts of tokens are kept as the sequence grows; a step costs as much as it has different
tokens, whatever the vocabulary. A function of the request and its tokens alone: who goes on
elsewhere rebuilds the same. Knows tokens and numbers; no masks, no filters and no noise.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from engine.types import Request, SamplingParams


def changes_of(request: Request, device: str) -> "LogitChanges | None":
    """What changes the logits of `request`, at its start; None: nothing does, ever."""
    params = request.sampling
    penalizes = _penalizes(params)
    if not penalizes and not params.logit_bias:
        return None
    counts = None
    if penalizes:
        prompt = set(request.prompt) if params.repetition_penalty != 1.0 else set()
        room = len(prompt) + len(request.emitted) + request.new_tokens
        counts = TokenCounts(prompt, room, device)
        for token in request.emitted:
            counts.add(token)
    return LogitChanges(params, counts, device)


def _penalizes(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


class TokenCounts:
    """How often each token is in the output; tokens that are penalized without have count 0."""

    def __init__(self, seen: Iterable[int], room: int, device: str) -> None:
        """`room`: the most different tokens that there will be, `seen` ones included."""
        ids = sorted(seen)
        self._place_of = {token: place for place, token in enumerate(ids)}
        self._ids = torch.zeros(room, dtype=torch.int64, device=device)
        self._ids[: len(ids)] = torch.tensor(ids, dtype=torch.int64)
        self._counts = torch.zeros(room, dtype=torch.float32, device=device)

    def add(self, token: int) -> None:
        """The output has one more `token`."""
        place = self._place_of.setdefault(token, len(self._place_of))
        self._ids[place] = token
        self._counts[place] += 1

    @property
    def ids(self) -> Tensor:
        """Int64 [different tokens], in no order."""
        return self._ids[: len(self._place_of)]

    @property
    def counts(self) -> Tensor:
        """Float32 [different tokens]: of `ids`."""
        return self._counts[: len(self._place_of)]


class LogitChanges:
    """The changes of one sequence. `add` follows its output, `apply` is for the next token."""

    def __init__(self, params: SamplingParams, counts: TokenCounts | None, device: str) -> None:
        self._params = params
        self._counts = counts
        bias = params.logit_bias
        self._biased = torch.tensor([token for token, _ in bias], dtype=torch.int64, device=device)
        self._bias = torch.tensor([value for _, value in bias], dtype=torch.float32, device=device)

    def add(self, token: int) -> None:
        """The output has one more `token`."""
        if self._counts is not None:
            self._counts.add(token)

    def apply(self, logits: Tensor) -> Tensor:
        """`logits` [vocab], changed; a copy."""
        logits = logits.clone()
        if len(self._bias):
            logits[self._biased] += self._bias
        if self._counts is not None:
            logits[self._counts.ids] = self._penalized(logits, self._counts)
        return logits

    def _penalized(self, logits: Tensor, counts: TokenCounts) -> Tensor:
        values, params = logits[counts.ids], self._params
        if params.repetition_penalty != 1.0:
            penalty = params.repetition_penalty
            scaled = torch.where(values > 0, values / penalty, values * penalty)
            values = scaled.clamp(max=torch.finfo(scaled.dtype).max)  # a tiny one overflows
        if params.frequency_penalty != 0.0:
            values = values - params.frequency_penalty * counts.counts
        if params.presence_penalty != 0.0:
            values = values - params.presence_penalty * (counts.counts > 0)
        return values
