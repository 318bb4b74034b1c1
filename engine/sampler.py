"""Draws tokens from logits. Knows rows and numbers; no sequence, no KV and no text.

Of one row of float32 logits, after bias and penalties (`engine/logit_changes.py`):

1. `masked` tokens are taken out.
2. Tokens are ranked by logit, ties by the lower id. Temperature 0 takes the first.
3. Weights are exp((logit - highest logit) / temperature).
4. Three filters each keep a first part of the ranking, and the shortest part counts:
   top_k the first top_k tokens; top_p, on the weights of those, the fewest that make up at
   least top_p of their sum; min_p those of at least min_p times the highest weight.
5. The token is where the running sum of the kept weights, *in order of ids*, first exceeds
   u times their sum, u being the uniform number of (seed, choice, position). In order of ids
   a small change of logits, as another batch brings, moves the sums little and never
   reorders tokens.

Where a mask names the tokens that are `allowed`, a row is those alone. Several choices that draw
from one row differ in their uniform numbers alone.

Log probabilities are log_softmax of the logits as the model gave them. Every row is computed
by itself, so a batch cannot change what is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.logit_changes import LogitChanges
from engine.noise import Purpose, uniform
from engine.types import SampledToken, SamplingParams

_FIRST_GUESS = 256
_LEAST_TEMPERATURE = 1e-30


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How to draw from one row of logits."""

    params: SamplingParams
    choice: int
    position: int
    """Index of the token in the output."""
    masked: frozenset[int] = frozenset()
    """Tokens that may not be drawn."""
    changes: LogitChanges | None = None
    """Bias and penalties."""
    choices: int = 1
    """How many choices draw from the row, with indices from `choice` on."""
    allowed: Tensor | None = None
    """Bool [vocab]: the only tokens that may be drawn, at least one, and none of `masked`.
    None: all."""


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[list[SampledToken]]:
    """By row of `logits` [rows, vocab], which stay as they are: a token for each choice."""
    plain = [_is_plain(row) for row in rows]
    best = logits.argmax(dim=-1).tolist() if any(plain) else []
    return [
        [SampledToken(best[i])] * row.choices if plain[i] else _sample_row(logits[i], row)
        for i, row in enumerate(rows)
    ]


def _is_plain(row: SampleRow) -> bool:
    params = row.params
    return (
        params.temperature == 0
        and params.logprobs is None
        and not row.masked
        and row.changes is None
        and row.allowed is None
    )


def _sample_row(logits: Tensor, row: SampleRow) -> list[SampledToken]:
    changed = logits if row.changes is None else row.changes.apply(logits)
    tokens = _drawn(changed, row)
    if row.params.logprobs is None:
        return [SampledToken(token) for token in tokens]
    logprobs = torch.log_softmax(logits, dim=-1)
    ids = leading(logits, row.params.logprobs)
    top = tuple(zip(ids.tolist(), logprobs[ids].tolist(), strict=True))
    return [SampledToken(token, float(logprobs[token]), top) for token in tokens]


def _drawn(logits: Tensor, row: SampleRow) -> list[int]:
    """A token for each choice, of those that may be drawn."""
    if row.allowed is None:
        return _draw(_without(logits, row.masked), row)
    if row.params.temperature == 0:
        return [int(logits.masked_fill(~row.allowed, -torch.inf).argmax())] * row.choices
    ids = row.allowed.nonzero().squeeze(1)
    return [int(ids[place]) for place in _draw(logits[ids], row)]


def report(logits: Tensor, tokens: Sequence[int], count: int) -> list[SampledToken]:
    """By row of `logits` [rows, vocab]: one of `tokens` with its log probability, and those of
    the `count` most probable tokens."""
    logprobs = torch.log_softmax(logits, dim=-1)
    ids = torch.tensor(tokens, device=logits.device)[:, None]
    own = logprobs.gather(1, ids).squeeze(1).tolist()
    top = _leading_of_rows(logits, count)
    values = logprobs.gather(1, top).tolist()
    return [
        SampledToken(token, logprob, tuple(zip(best, best_values, strict=True)))
        for token, logprob, best, best_values in zip(tokens, own, top.tolist(), values, strict=True)
    ]


def _leading_of_rows(logits: Tensor, count: int) -> Tensor:
    """`leading` of each row of `logits` [rows, vocab]: int64 [rows, count]."""
    count = min(count, logits.shape[1])
    best, ids = logits.topk(min(count + 1, logits.shape[1]))
    ids = ids[:, :count]
    ties = (best[:, 1:] == best[:, :-1]).any(dim=1)
    for row in ties.nonzero().flatten().tolist():
        ids[row] = leading(logits[row], count)
    return ids


def _without(logits: Tensor, masked: frozenset[int]) -> Tensor:
    if not masked:
        return logits
    ids = torch.tensor(sorted(masked), device=logits.device)
    return logits.index_fill(0, ids, -torch.inf)


def _draw(logits: Tensor, row: SampleRow) -> list[int]:
    """A token for each choice."""
    params = row.params
    if params.temperature == 0:
        return [int(logits.argmax())] * row.choices
    ids = None  # of `logits` and `weights`, ascending; None while they are all of the vocabulary
    if 0 < params.top_k < len(logits):
        ids = _first_ids(logits, params.top_k)
        logits = logits[ids]
    weights = ((logits - logits.max()) / max(params.temperature, _LEAST_TEMPERATURE)).exp()
    kept = _kept_count(weights, params)
    if kept < len(weights):
        places = _first_ids(logits, kept)
        weights = weights[places]
        ids = places if ids is None else ids[places]
    sums = weights.cumsum(0, dtype=torch.float64)
    drawn = [
        _inverse(sums, uniform(params.seed, choice, row.position, Purpose.SAMPLE))
        for choice in range(row.choice, row.choice + row.choices)
    ]
    return drawn if ids is None else [int(ids[place]) for place in drawn]


def _inverse(sums: Tensor, noise: float) -> int:
    """Where the running sums first exceed `noise` times their last."""
    place = int(torch.searchsorted(sums, noise * float(sums[-1]), right=True))
    if place == len(sums):  # the product was rounded up to the sum itself
        place = min(int(torch.searchsorted(sums, sums[-1:])), len(sums) - 1)
    return place


def _kept_count(weights: Tensor, params: SamplingParams) -> int:
    """How many of the highest weights top_p and min_p keep; at least one."""
    kept = len(weights)
    if params.min_p > 0:
        kept = min(kept, int((weights >= params.min_p).sum()))
    if params.top_p < 1:
        kept = min(kept, _nucleus(weights, params.top_p))
    return max(kept, 1)


def _nucleus(weights: Tensor, top_p: float) -> int:
    """The fewest of the highest weights that make up `top_p` of the sum of all.

    Mostly some hundreds of a big vocabulary are enough to know, which spares sorting it.
    """
    target = float(weights.sum(dtype=torch.float64)) * top_p
    best = weights.topk(min(_FIRST_GUESS, len(weights))).values
    count = _reach(best, target)
    if count > len(best):
        ascending = np.sort(weights.numpy(force=True))  # many times faster than torch's
        count = _reach(torch.from_numpy(ascending[::-1].copy()), target)
    return min(count, len(weights))


def _reach(descending: Tensor, target: float) -> int:
    """How many of the weights add up to `target`; one more than there are if all do not."""
    return int(torch.searchsorted(descending.cumsum(0, dtype=torch.float64), target)) + 1


def _first_ids(logits: Tensor, count: int) -> Tensor:
    """The ids of the first `count` tokens of the ranking, ascending."""
    best, ids = logits.topk(min(count + 1, len(logits)))
    if len(best) == count or best[count - 1] > best[count]:
        return ids[:count].sort().values
    ids = (logits >= best[count]).nonzero().squeeze(1)
    last_ties = (logits[ids] == best[count]).nonzero().squeeze(1)[count - len(ids) :]
    keep = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    keep[last_ties] = False
    return ids[keep]


def leading(logits: Tensor, count: int) -> Tensor:
    """The ids of the first `count` tokens of the ranking, in its order."""
    count = min(count, len(logits))
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    ids = _first_ids(logits, count)
    return ids[logits[ids].argsort(descending=True, stable=True)]
