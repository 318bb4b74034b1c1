"""The plain reference of sampling: lists and sorting, everything computed anew for each token."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from engine.noise import Purpose, uniform
from engine.types import SamplingParams

SLACK = 1e-5
"""What rounding may move a logit or a part of all probability by."""


def changed_logits(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """After bias and penalties."""
    changed = list(logits)
    for token, bias in params.logit_bias:
        changed[token] += bias
    for token in {*prompt, *output}:
        if changed[token] > 0:
            changed[token] /= params.repetition_penalty
        else:
            changed[token] *= params.repetition_penalty
    for token in set(output):
        changed[token] -= params.presence_penalty
        changed[token] -= params.frequency_penalty * list(output).count(token)
    return changed


def masked(
    params: SamplingParams, output: Sequence[int], end_ids: Collection[int], vocab_size: int
) -> set[int]:
    """Tokens that must not come next."""
    out = set(end_ids) if len(output) < params.min_tokens else set()
    for token in range(vocab_size):
        text = (*output, token)
        if any(text[-len(bad) :] == bad for bad in params.bad_sequences):
            out.add(token)
    return out


def kept(logits: Sequence[float], params: SamplingParams) -> list[int]:
    """The tokens that the filters keep, in the ranking's order."""
    ranking = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    top = logits[ranking[0]]
    weights = [math.exp((logits[i] - top) / params.temperature) for i in ranking]
    count = min(params.top_k or len(logits), len(logits))
    whole, total, nucleus = sum(weights[:count]), 0.0, count
    if params.top_p < 1:
        for place, weight in enumerate(weights[:count], start=1):
            total += weight
            if total >= params.top_p * whole:
                nucleus = place
                break
    above = sum(weight >= params.min_p for weight in weights) if params.min_p else count
    return ranking[: max(1, min(count, nucleus, above))]


def bounds(logits: Sequence[float], params: SamplingParams, token: int) -> tuple[float, float]:
    """Between which numbers in [0, 1] the noise draws `token`, one of those kept."""
    ids = sorted(kept(logits, params))
    top = max(logits)
    weights = [math.exp((logits[i] - top) / params.temperature) for i in ids]
    place = ids.index(token)
    whole = sum(weights)
    return sum(weights[:place]) / whole, sum(weights[: place + 1]) / whole


def near_a_filter_edge(logits: Sequence[float], params: SamplingParams) -> bool:
    """Whether rounding may decide how many tokens the filters keep."""
    sizes = {
        len(kept(logits, replace(params, top_p=params.top_p * p, min_p=params.min_p * m)))
        for p in ((1 - SLACK, 1 + SLACK) if params.top_p < 1 else (1.0,))
        for m in (1 - SLACK, 1 + SLACK)
    }
    return len(sizes) > 1 and params.min_p != 1.0


def draws(
    token: int,
    logits: Sequence[float],
    params: SamplingParams,
    choice: int = 0,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    end_ids: Collection[int] = (),
    slack: float = SLACK,
) -> bool:
    """Whether `token` is the right one after `output`, as far as rounding lets one tell."""
    values = changed_logits(logits, params, prompt, output)
    for gone in masked(params, output, end_ids, len(logits)):
        values[gone] = -math.inf
    if params.temperature == 0:
        return token in _best(values, slack)
    if near_a_filter_edge(values, params):
        return values[token] > -math.inf
    if token not in kept(values, params):
        return False
    low, high = bounds(values, params, token)
    return low - SLACK <= uniform(params.seed, choice, len(output), Purpose.SAMPLE) <= high + SLACK


def _best(values: Sequence[float], slack: float) -> list[int]:
    best = max(values)
    if slack == 0:
        return [list(values).index(best)]
    return [token for token, value in enumerate(values) if value >= best - slack]


def params_of(vocab_size: int, max_tokens: int) -> st.SearchStrategy[SamplingParams]:
    """All options combined. Their numbers are sums of few powers of two, so that what they do
    to logits that are too is exact; few different tokens, so that they meet."""
    token = st.integers(0, min(vocab_size, 12) - 1)
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 1.7, 100.0]),
        top_k=st.sampled_from([0, 0, 1, 2, 5, 10_000]),
        top_p=st.sampled_from([0.1, 0.513, 0.9, 1.0, 1.0]),
        min_p=st.sampled_from([0.0, 0.0, 0.0512, 0.31]),
        seed=st.integers(0, 2**64 - 1),
        max_tokens=st.just(max_tokens),
        min_tokens=st.integers(0, max_tokens),
        stop_token_ids=st.frozensets(token, max_size=2),
        ignore_eos=st.booleans(),
        logprobs=st.sampled_from([None, 0, 3]),
        repetition_penalty=st.sampled_from([1.0, 0.5, 2.0, 4.0]),
        presence_penalty=st.sampled_from([0.0, -1.5, 0.5, 2.0]),
        frequency_penalty=st.sampled_from([0.0, -0.25, 0.5, 2.0]),
        logit_bias=st.dictionaries(
            token, st.sampled_from([-100.0, -1.0, 2.5, 3.5, 5.0, 100.0]), max_size=6
        ).map(lambda biases: tuple(biases.items())),
        bad_sequences=st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), max_size=5).map(
            tuple
        ),
    )
