"""What this worker's steps take: learned from the steps themselves.

Steps are told on the engine's thread, in O(1); whoever asks for the cost on another thread may
pay for a new fit, which takes less than a millisecond. Knows shapes and seconds; no engine, no
fleet.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from baton.policy.cost import StepCost
from engine.steps import StepReport
from services.worker.fitting import coefficients, fit, speed
from services.worker.samples import Samples

REFIT_S = 1.0
"""Least time between two fits."""
FIRST_SAMPLES = 2
REFIT_SAMPLES = 8
"""Least number of new steps for a fit."""
SMOOTHING = 0.5
"""How far the coefficients go towards those of a fit; all the way at the first one."""
HALF_LIFE_S = 60.0
"""After so long a step counts half: machines and neighbours change."""
LEAST_WEIGHT = 0.02
"""Of a step, however long ago: while only short prompts come, nothing else tells what a long one
takes, and their noise must not."""
ERROR_SMOOTHING = 0.05
DECODE_SMOOTHING = 0.1
MOST_DECODE = 4.0
"""Times the mean that one decode step counts: a process that was stopped is no slow step."""


class CostModel:
    """A cost that follows what is measured. `observe` and `cost` may be on different threads."""

    def __init__(self, prior: StepCost, clock: Callable[[], float] = time.monotonic) -> None:
        """`prior` holds until something was measured."""
        self._clock = clock
        self._lock = threading.Lock()
        """Held for the samples."""
        self._samples = Samples()
        self._cost = replace(prior, relative_error=1.0)
        self._fitted_at: float | None = None
        self._new = 0
        self._predictions = 0
        self._error = 1.0
        self._decode_step_s = 0.0

    @property
    def cost(self) -> StepCost:
        """What steps take, as known now; `relative_error` is that of predictions made before
        their step was seen."""
        self._refit_if_due()
        return replace(self._cost, relative_error=self._error)

    @property
    def decode_step_s(self) -> float:
        """Moving mean of the steps that decoded, in seconds; 0: there was none."""
        return self._decode_step_s

    def observe(self, report: StepReport) -> None:
        """Takes a step into account."""
        if report.seconds <= 0:
            return
        self._judge(report)
        if report.shape.sequences:
            mean = self._decode_step_s or report.seconds
            step_s = min(report.seconds, MOST_DECODE * mean)
            self._decode_step_s = mean + DECODE_SMOOTHING * (step_s - mean)
        with self._lock:
            self._samples.add(report, self._clock())
            self._new += 1

    def learn(self, reports: Sequence[StepReport]) -> None:
        """Takes many steps into account at once, in any order: every other one to fit the
        model, the rest to see how well it then predicts."""
        for report in reports[::2]:
            self.observe(report)
        self.refit()
        for report in reports[1::2]:
            self.observe(report)
        self.refit()
        if not self._predictions:  # too few to keep any back
            for report in reports:
                self._judge(report)

    def refit(self) -> None:
        """Fits the cost to the steps that are remembered, if they are enough; the first fit, which
        mostly finds the speed of the prior, needs few."""
        with self._lock:
            if len(self._samples) < (FIRST_SAMPLES if self._fitted_at is None else REFIT_SAMPLES):
                return
            rows, seconds, at = self._samples.arrays()
            self._new = 0
        weights = np.maximum(LEAST_WEIGHT, np.exp2((at - at.max()) / HALF_LIFE_S))
        before = coefficients(self._cost)
        if self._fitted_at is None:
            before *= speed(rows, seconds, before)
            found = fit(rows, seconds, weights, before)
        else:
            found = before + SMOOTHING * (fit(rows, seconds, weights, before) - before)
        self._fitted_at = self._clock()
        self._cost = StepCost(*(float(value) for value in found))

    def _refit_if_due(self) -> None:
        since = self._fitted_at
        due = since is None or self._clock() - since >= REFIT_S
        if due and self._new >= REFIT_SAMPLES:
            self.refit()

    def _judge(self, report: StepReport) -> None:
        """Compares a step with what the cost as fitted so far says of it."""
        if self._fitted_at is None:
            return
        shape = report.shape
        predicted = self._cost.step_s(
            prompt_tokens=shape.prompt_tokens,
            prompt_pairs=shape.prompt_pairs,
            sequences=shape.sequences,
            context_tokens=shape.context_tokens,
        )
        error = min(1.0, abs(predicted - report.seconds) / report.seconds)
        self._predictions += 1
        share = max(ERROR_SMOOTHING, 1.0 / self._predictions)
        self._error += share * (error - self._error)
