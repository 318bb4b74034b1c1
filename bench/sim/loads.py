"""Loads that change with time, for pools that a scaler resizes."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.sim.cache import Index, PrefixCache
from bench.sim.totals import work
from bench.sim.workload import BLOCK_TOKENS, Arrival, Line, shaped
from services.common.fleet.demand import DemandTotals
from services.planner.buckets import Bucket
from services.planner.config import PlannerConfig
from services.planner.history import History

Rate = Callable[[float], float]
"""Requests a second by the time."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one kind: what they are like, and how many come."""

    lines: Sequence[Line]
    rate: Rate


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of all kinds by their time."""

    arrivals: Sequence[Arrival]
    copies: int
    end_s: float


def mixed(kinds: Sequence[Kind], end_s: float, seed: int) -> Load:
    """All kinds together; none has prefixes of another."""
    found = [
        replace(one, copy=one.copy * len(kinds) + place)
        for place, kind in enumerate(kinds)
        for one in shaped(kind.lines, kind.rate, end_s, seed * 101 + place)
    ]
    copies = max((one.copy for one in found), default=0) + 1
    return Load(sorted(found, key=lambda one: (one.at_s, one.copy)), copies, end_s)


def synthetic(
    prompt_tokens: int, output_tokens: int, count: int = 200, seed: int = 0
) -> list[Line]:
    """Requests of about such lengths, which vary by half, without common prefixes."""
    draw = random.Random(seed)

    def about(mean: int) -> int:
        return max(1, round(mean * draw.uniform(0.5, 1.5)))

    return [
        Line(float(at_s), about(prompt_tokens), about(output_tokens), (), None, None, False, "")
        for at_s in range(count)
    ]


def steady(rate: float) -> Rate:
    """Always the same."""
    return lambda _at_s: rate


def pulse(low: float, high: float, begin_s: float, end_s: float = math.inf) -> Rate:
    """A step up, and down again at the end."""
    return lambda at_s: high if begin_s <= at_s < end_s else low


def ramp(first: float, last: float, begin_s: float, end_s: float) -> Rate:
    """From one rate to another in a straight line."""

    def rate(at_s: float) -> float:
        share = min(1.0, max(0.0, (at_s - begin_s) / (end_s - begin_s)))
        return first + share * (last - first)

    return rate


def daily(low: float, high: float, peak: float, width: float, season_s: float) -> Rate:
    """High about one moment of the day, low else; `peak` and `width` are shares of the day."""

    def rate(at_s: float) -> float:
        away = (at_s / season_s - peak + 0.5) % 1.0 - 0.5
        return low + (high - low) * math.exp(-0.5 * (away / width) ** 2)

    return rate


def remembered(load: Load, begin_s: float, config: PlannerConfig) -> History:
    """What a planner remembers of a load that came from `begin_s` on, when all of it has ended.

    Whatever one large cache would have had of the prompts counts as cached.
    """
    cache = PrefixCache(0, 4_000_000 // BLOCK_TOKENS, Index())
    bucket, history = Bucket(config), History(config.bucket_s)
    left = list(reversed(load.arrivals))
    for second in range(1, math.ceil(load.end_s) + 1):
        demand = DemandTotals()
        while left and left[-1].at_s < second:
            demand += _demand(left.pop(), load.copies, cache)
        history = bucket.add(begin_s + second, 1.0, demand, history)
    return bucket.add(begin_s + second + config.bucket_s, 1.0, DemandTotals(), history)


def _demand(arrival: Arrival, copies: int, cache: PrefixCache) -> DemandTotals:
    line, blocks = arrival.line, arrival.blocks(copies)
    cached = min(cache.match(blocks), line.input_tokens - 1)
    cache.add(blocks)
    came = DemandTotals(requests=1, prompt_tokens=line.input_tokens)
    return came + work(line.input_tokens, cached, line.output_tokens)
