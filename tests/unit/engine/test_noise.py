"""The noise is what its definition says, spread evenly, and independent in each argument."""

import itertools

import pytest

from engine.noise import Purpose, splitmix64, uniform


@pytest.mark.parametrize(
    ("state", "expected"),
    [(0, 0xE220A8397B1DCDAF), (1234567, 6457827717110365317)],
)
def test_splitmix64_agrees_with_published_values(state: int, expected: int) -> None:
    assert splitmix64(state) == expected


def test_uniform_is_the_chained_hash() -> None:
    noise = splitmix64(42)
    for value in (3, 17, 0):
        noise = splitmix64(noise ^ value)
    assert uniform(42, 3, 17, Purpose.SAMPLE) == (noise >> 11) / 2**53


def test_uniform_stays_below_one_for_extreme_arguments() -> None:
    for seed, choice, position in itertools.product((0, 1, 2**64 - 1), repeat=3):
        assert 0.0 <= uniform(seed, choice, position, Purpose.SAMPLE) < 1.0


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_uniform_is_spread_evenly_along_each_argument(axis: int) -> None:
    count, bins = 20_000, 20
    histogram = [0] * bins
    previous, pairs = 0.5, 0.0
    for i in range(count):
        arguments = [5, 5, 5]
        arguments[axis] = i
        value = uniform(arguments[0], arguments[1], arguments[2], Purpose.SAMPLE)
        histogram[int(value * bins)] += 1
        pairs += (value - 0.5) * (previous - 0.5)
        previous = value
    chi_square = sum((n - count / bins) ** 2 / (count / bins) for n in histogram)
    assert chi_square < 50  # 19 degrees of freedom: above 50 with probability 1e-4
    assert abs(pairs / count * 12) < 0.03  # neighbours are not correlated


def test_arguments_do_not_stand_in_for_each_other() -> None:
    values = {
        uniform(seed, choice, position, Purpose.SAMPLE)
        for seed, choice, position in itertools.product(range(12), repeat=3)
    }
    assert len(values) == 12**3
