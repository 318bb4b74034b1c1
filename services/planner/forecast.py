"""What will be asked for: the season that was seen, carried on by a damped trend.

With two seasons or more the load's logarithm is split into season, trend and rest (STL); the
season repeats, and the rest goes on by Holt's damped trend. With less it is the trend alone, and
with hardly anything no forecast at all. The smoothing is fixed rather than fitted: it can't fail,
and is the same for the same history.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from baton.policy.sizing import Traffic
from services.planner.history import History

FEWEST = 4
"""Pieces without which nothing is foreseen."""
TREND = 24
"""Last pieces that the trend is taken from."""
LEVEL, SLOPE, DAMPING = 0.6, 0.2, 0.85
"""How much of the rate's level and slope is that of the last piece, and of a slope goes on."""
SIZE_LEVEL = 0.3
"""The same for what requests are like, which has no slope: sizes vary more."""
USUAL = (0.1, 0.9)
"""Quantiles of the last season between which sizes are foreseen."""
NEAR = 2
"""Pieces on either side that sizes are the mean over."""
CEILING = 1.5
"""Most that is foreseen, as a multiple of the most that was seen."""
FLOOR = 0.01
"""Share of the mean that is added before the logarithm is taken: the load may be zero."""

Series = NDArray[np.float64]


def forecast(history: History, season_s: float, steps: int) -> Sequence[Traffic]:
    """The load of the `steps` pieces after the last one of the history; none: too little is
    known."""
    if len(history.buckets) < FEWEST:
        return ()
    season = round(season_s / history.bucket_s)
    grid = _grid(history, season)
    requests = _ahead(grid[:, 0], season, steps, LEVEL, SLOPE)
    foreseen = [requests]
    for sizes in _sizes(grid).T:
        usual = np.quantile(sizes[-season:], USUAL)
        ahead = _ahead(sizes, season, steps, SIZE_LEVEL, 0.0)
        foreseen.append(requests * np.clip(ahead, *usual))
    return [Traffic(*(float(values[step]) for values in foreseen)) for step in range(steps)]


def _sizes(grid: Series) -> Series:
    """What a request is like in each piece: means over it and its neighbours, since a few long
    ones would move that of a single one."""
    padded = np.pad(grid, ((NEAR, NEAR), (0, 0)), mode="edge")
    sums = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEAR + 1, axis=0).sum(axis=-1)
    whole = grid.sum(axis=0)
    some = sums[:, 0] > 0
    sizes = np.tile(whole[1:] / max(whole[0], 1e-9), (len(grid), 1))
    sizes[some] = sums[some, 1:] / sums[some, :1]
    return sizes


def _grid(history: History, season: int) -> Series:
    """A row for each piece from the first to the last. One that is missing is as a season
    before, or else as the one before."""
    first, last = min(history.buckets), max(history.buckets)
    rows: list[Sequence[float]] = []
    for number in range(first, last + 1):
        seen = history.buckets.get(number)
        if seen is not None:
            rows.append(seen.values())
        else:
            rows.append(rows[-season] if len(rows) >= season else rows[-1])
    return np.array(rows)


def _ahead(values: Series, season: int, steps: int, smooth: float, slope: float) -> Series:
    most = float(values.max())
    if most <= 0:
        return np.zeros(steps)
    offset = FLOOR * float(values.mean())
    logs = np.log(values + offset)
    repeated = np.zeros(len(logs) + steps)
    if len(logs) >= 2 * season:
        repeated = _season(logs, season, steps)
    rest = logs - repeated[: len(logs)]
    ahead = _trend(rest[-TREND:], steps, smooth, slope) + repeated[len(logs) :]
    return np.clip(np.exp(ahead) - offset, 0.0, CEILING * most)


def _season(logs: Series, season: int, steps: int) -> Series:
    """The part that repeats, and the same part carried on."""
    # Takes a second to import: only who has seasons pays for it.
    from statsmodels.tsa.seasonal import STL

    # Between points that lie a jump apart the smooth curves are straight lines.
    jump = max(1, season // 12)
    split = STL(
        logs, season, 7, _odd(1.5 * season), _odd(season), trend_jump=jump, low_pass_jump=jump
    )
    part = np.asarray(split.fit(inner_iter=1, outer_iter=0).seasonal)
    return np.concatenate([part, np.resize(part[-season:], steps)])


def _trend(logs: Series, steps: int, smooth: float, turn: float) -> Series:
    """Holt's damped trend."""
    level, slope = float(logs[0]), 0.0
    for value in logs[1:]:
        before = level
        level = smooth * float(value) + (1 - smooth) * (level + DAMPING * slope)
        slope = turn * (level - before) + (1 - turn) * DAMPING * slope
    return level + slope * np.cumsum(DAMPING ** np.arange(1, steps + 1))


def _odd(length: float) -> int:
    return 2 * math.ceil(length / 2) + 1
