"""Draws tokens from logits. Knows rows and numbers; no sequence, no KV and no text.

Of one row of float32 logits:

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

Log probabilities are log_softmax of the logits as the model gave them. Every row is computed
by itself, so a batch cannot change what is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken]:
    """One token for each row of `logits` [rows, vocab], which stay as they are."""
    plain = [_is_plain(row) for row in rows]
    best = logits.argmax(dim=-1).tolist() if any(plain) else []
    return [
        SampledToken(best[i]) if plain[i] else _sample_row(logits[i], row)
        for i, row in enumerate(rows)
    ]


def _is_plain(row: SampleRow) -> bool:
    return row.params.temperature == 0 and row.params.logprobs is None and not row.masked


def _sample_row(logits: Tensor, row: SampleRow) -> SampledToken:
    token = _draw(_without(logits, row.masked), row)
    if row.params.logprobs is None:
        return SampledToken(token)
    logprobs = torch.log_softmax(logits, dim=-1)
    ids = leading(logits, row.params.logprobs)
    top = tuple(zip(ids.tolist(), logprobs[ids].tolist(), strict=True))
    return SampledToken(token, float(logprobs[token]), top)


def _without(logits: Tensor, masked: frozenset[int]) -> Tensor:
    if not masked:
        return logits
    ids = torch.tensor(sorted(masked), device=logits.device)
    return logits.index_fill(0, ids, -torch.inf)


def _draw(logits: Tensor, row: SampleRow) -> int:
    params = row.params
    if params.temperature == 0:
        return int(logits.argmax())
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
    noise = uniform(params.seed, row.choice, row.position, Purpose.SAMPLE)
    place = _inverse(weights.cumsum(0, dtype=torch.float64), noise)
    return place if ids is None else int(ids[place])


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
