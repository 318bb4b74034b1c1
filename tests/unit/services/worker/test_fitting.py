"""The fit finds what steps cost from noisy measurements, and takes no single one too seriously."""

import numpy as np
import pytest

from baton.policy.cost import StepCost
from services.worker.fitting import coefficients, fit, speed

TRUTH = np.array([4e-3, 2e-4, 3e-8, 5e-4, 1e-6])
PRIOR = coefficients(StepCost(0.02, 2e-3, 1e-7, 5e-3, 5e-6))


def steps(count: int, rng: np.random.Generator) -> np.ndarray:
    """Steps with prompts of all sizes and batches of all sizes, some with both: [count, 5]."""
    kinds = rng.integers(0, 3, count)
    prompts = np.where(kinds != 0, rng.integers(8, 257, count), 0)
    before = rng.integers(0, 4000, count)
    pairs = prompts * before + prompts * (prompts + 1) // 2
    sequences = np.where(kinds != 1, rng.integers(1, 33, count), 0)
    context = sequences * rng.integers(100, 4000, count)
    columns = [np.ones(count), prompts, pairs, sequences, context]
    return np.stack(columns, axis=1).astype(np.float64)


def measured(rows: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    return rows @ TRUTH * (1 + noise * rng.standard_normal(len(rows)))


@pytest.mark.parametrize("seed", range(5))
def test_known_coefficients_are_found_within_five_percent(seed):
    rng = np.random.default_rng(seed)
    rows = steps(500, rng)
    seconds = measured(rows, 0.03, rng)
    start = PRIOR * speed(rows, seconds, PRIOR)
    found = fit(rows, seconds, np.ones(len(rows)), start)
    assert found == pytest.approx(TRUTH, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_a_busy_machine_made_ten_times_as_long_change_little(seed):
    rng = np.random.default_rng(seed)
    rows = steps(500, rng)
    seconds = measured(rows, 0.05, rng)
    seconds[rng.random(len(rows)) < 0.05] *= 10
    found = fit(rows, seconds, np.ones(len(rows)), PRIOR)
    assert rows @ found == pytest.approx(rows @ TRUTH, rel=0.1)


def test_what_no_step_shows_stays_as_it_was():
    rng = np.random.default_rng(1)
    rows = steps(200, rng)
    rows[:, 1:3] = 0.0
    found = fit(rows, rows @ TRUTH, np.ones(200), PRIOR)
    assert found[1:3] == pytest.approx(PRIOR[1:3])
    assert rows @ found == pytest.approx(rows @ TRUTH, rel=0.02)


def test_steps_of_one_shape_are_predicted_though_they_tell_no_terms_apart():
    rows = np.tile([1.0, 0.0, 0.0, 4.0, 800.0], (50, 1))
    found = fit(rows, rows @ TRUTH, np.ones(50), PRIOR)
    assert rows @ found == pytest.approx(rows @ TRUTH, rel=0.01)
    assert (found >= 0).all()


def test_no_coefficient_is_negative_where_plain_least_squares_would_say_so():
    rng = np.random.default_rng(2)
    rows = steps(40, rng)
    truth = TRUTH * [1, 1, 0, 1, 0]
    seconds = rows @ truth * (1 + 0.3 * rng.standard_normal(40)).clip(0.2)
    found = fit(rows, seconds, np.ones(40), PRIOR)
    assert (found >= 0).all()
    assert np.isfinite(found).all()


def test_heavier_samples_count_more():
    rows = np.tile([1.0, 0.0, 0.0, 1.0, 100.0], (100, 1))
    seconds = np.where(np.arange(100) % 2, 0.010, 0.011)
    heavy = np.where(np.arange(100) % 2, 1.0, 0.01)
    found = fit(rows, seconds, heavy, PRIOR)
    assert rows[0] @ found == pytest.approx(0.010, rel=0.01)


def test_speed_is_the_median_factor():
    rows = np.tile([1.0, 0.0, 0.0, 0.0, 0.0], (5, 1))
    seconds = np.array([0.04, 0.04, 0.04, 4.0, 0.01])
    assert speed(rows, seconds, PRIOR) == pytest.approx(2.0)
