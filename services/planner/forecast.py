"""What will be asked for: the season that was seen, carried on by a damped trend.

With two seasons or more the load's logarithm is split into season, trend and rest (STL); the
season repeats, and the rest goes on by Holt's damped trend. With less it is the trend alone, and
with hardly anything no forecast at all. The smoothing is fixed rather than fitted: it can't fail,
and is the same for the same history. Where few requests came in a piece, most of what it differs
by from its neighbours is chance: so it counts as the mean over as many of them as it takes.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from baton.policy.sizing import Traffic
from services.planner.history import History

FEWEST = 4
"""Pieces without which nothing is foreseen."""
TREND = 24
"""Last pieces that the trend is taken from."""
RATE = {"smoothing_level": 0.6, "smoothing_trend": 0.2, "damping_trend": 0.85}
"""How much of the rate's level and slope is that of the last piece, and of a slope goes on."""
SIZE = {"smoothing_level": 0.3, "smoothing_trend": 0.0, "damping_trend": 0.85}
"""The same for what requests are like, which has no slope: sizes vary more."""
USUAL = (0.1, 0.9)
"""Quantiles of the last season between which sizes are foreseen."""
ENOUGH, LIKE = 50, 200
"""Requests that a rate, and what they are like, is the mean over."""
NEAR = 4
"""Most pieces on either side that it is the mean over."""
CEILING = 1.5
"""Most that is foreseen, as a multiple of the most that was seen."""
FLOOR = 0.01
"""Share of the mean that is added before the logarithm is taken: the load may be zero."""

Series = NDArray[np.float64]


def forecast(history: History, season_s: float, steps: int) -> Sequence[Traffic]:
    """The load of the last piece of the history, as it would be but for chance, and of the
    `steps` after it; none: too little is known."""
    if len(history.buckets) < FEWEST:
        return ()
    season = round(season_s / history.bucket_s)
    grid = _grid(history, season)
    rates = _means(grid, ENOUGH / history.bucket_s)[:, 0]
    alike = _means(grid, LIKE / history.bucket_s)
    requests = _ahead(rates, season, steps, RATE)
    foreseen = [requests]
    for sizes in _sizes(alike).T:
        usual = np.quantile(sizes[-season:], USUAL)
        foreseen.append(requests * np.clip(_ahead(sizes, season, steps, SIZE), *usual))
    return [Traffic(*map(float, values)) for values in np.array(foreseen).T]


def _means(grid: Series, enough: float) -> Series:
    """Each piece as the mean over it and as few of its neighbours as have so many requests."""
    means = grid.copy()
    for near in range(1, NEAR + 1):
        padded = np.pad(grid, ((near, near), (0, 0)), mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * near + 1, axis=0)
        few = means[:, 0] * (2 * near - 1) < enough
        means[few] = windows[few].mean(axis=-1)
    return means


def _sizes(grid: Series) -> Series:
    """What a request is like in each piece."""
    some, whole = grid[:, 0] > 0, grid.sum(axis=0)
    sizes = np.tile(whole[1:] / max(whole[0], 1e-9), (len(grid), 1))
    sizes[some] = grid[some, 1:] / grid[some, :1]
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


def _ahead(values: Series, season: int, steps: int, smoothing: Mapping[str, float]) -> Series:
    """The last value without chance, and those that follow."""
    most = float(values.max())
    if most <= 0:
        return np.zeros(steps + 1)
    offset = FLOOR * float(values.mean())
    logs = np.log(values + offset)
    repeated = np.zeros(len(logs) + steps)
    if len(logs) >= 2 * season:
        repeated = _season(logs, season, steps)
    rest = logs - repeated[: len(logs)]
    ahead = _trend(rest[-TREND:], steps, smoothing) + repeated[len(logs) - 1 :]
    if len(logs) < 2 * season:
        # A leap is no trend: nothing is foreseen to grow before the level has caught up with it.
        ahead[0] = max(ahead[0], logs[-1])
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


def _trend(logs: Series, steps: int, smoothing: Mapping[str, float]) -> Series:
    """The last level, and Holt's damped trend from there on."""
    from statsmodels.tsa.holtwinters import Holt

    first = float(logs[0])
    model = Holt(
        logs, damped_trend=True,
        initialization_method="known", initial_level=first, initial_trend=0.0,
    )  # fmt: skip
    # A fit without any error has no information criterion; nobody asks for it.
    with np.errstate(divide="ignore", invalid="ignore"):
        fitted = model.fit(**smoothing, optimized=False)
        return np.array([fitted.level[-1], *fitted.forecast(steps)])


def _odd(length: float) -> int:
    return 2 * math.ceil(length / 2) + 1
