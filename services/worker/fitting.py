"""Fits a step's cost to measured steps: least squares, weighted, robust, never below zero.

Pure functions on arrays. Knows no clock, no engine, and not where samples come from.

A step's cost is a sum of five terms, see `baton.policy.cost.StepCost`. Errors count relative to
the prediction, so that short steps matter as much as long ones; a step that took far longer than
the others like it (the machine was busy) pulls no stronger than one that was a little off.
"""

import numpy as np
from numpy.typing import NDArray

from baton.policy.cost import StepCost

Array = NDArray[np.float64]

TERMS = 5
ROUNDS = 4
RIDGE = 1e-4
"""Pull towards the coefficients as they were, against that of the samples: decides only what
the samples don't."""
HUBER = 1.5
"""Residuals beyond so many deviations pull with that strength only."""
LEAST_DEVIATION = 0.02
LEAST_PREDICTION = 0.05
"""Of the measured seconds: a smaller prediction does not count for weights."""


def coefficients(cost: StepCost) -> Array:
    """The cost as a vector, [TERMS]."""
    return np.array(
        [
            cost.base_s,
            cost.prompt_token_s,
            cost.prompt_pair_s,
            cost.sequence_s,
            cost.context_token_s,
        ]
    )


def fit(rows: Array, seconds: Array, weights: Array, current: Array) -> Array:
    """The coefficients [TERMS] that predict best what steps took.

    `rows` [steps, TERMS] are what was in each step, the first column ones; `seconds` [steps] what
    it took, above 0; `weights` [steps] how much it counts. Terms that no step tells apart stay
    in the proportions of `current`.
    """
    wide = 1.0 / seconds
    found = _solve(rows, seconds, weights, wide, current)
    for _ in range(ROUNDS):
        predicted = np.maximum(rows @ found, LEAST_PREDICTION * seconds)
        residuals = (seconds - predicted) / predicted
        deviation = max(LEAST_DEVIATION, 1.4826 * float(np.median(np.abs(residuals))))
        pull = np.minimum(1.0, HUBER * deviation / np.maximum(np.abs(residuals), 1e-12))
        found = _solve(rows, seconds, weights * pull, 1.0 / predicted, current)
    return found


def speed(rows: Array, seconds: Array, current: Array) -> float:
    """By what factor steps took longer than `current` says; the median."""
    return float(np.median(seconds / (rows @ current)))


def _solve(rows: Array, seconds: Array, weights: Array, per: Array, current: Array) -> Array:
    """Least squares of `weights * ((rows @ x - seconds) * per)^2` with x >= 0."""
    scaled = rows * per[:, None]
    sizes = np.sqrt(np.average(scaled**2, axis=0, weights=weights))
    # A term that no step has is left to the pull towards what it was.
    sizes[sizes == 0.0] = 1.0
    scaled /= sizes
    ridge = RIDGE * float(weights.sum())
    normal = (scaled * weights[:, None]).T @ scaled + ridge * np.eye(TERMS)
    wanted = scaled.T @ (weights * seconds * per) + ridge * sizes * current
    return _non_negative(normal, wanted) / sizes


def _non_negative(normal: Array, wanted: Array) -> Array:
    """x >= 0 with `normal @ x = wanted` where x > 0: the terms that would be negative are taken
    out one by one, the worst first."""
    active = np.ones(TERMS, dtype=bool)
    found = np.zeros(TERMS)
    while active.any():
        found[:] = 0.0
        found[active] = np.linalg.solve(normal[np.ix_(active, active)], wanted[active])
        worst = int(np.argmin(found))
        if found[worst] >= 0.0:
            break
        active[worst] = False
    return np.maximum(found, 0.0)
