"""Frequent steps don't push out the rare ones, and memory is bounded."""

import random

from engine.steps import StepReport, StepShape
from services.worker.samples import BIN_SAMPLES, KIND_BINS, Samples


def report(prompt=0, pairs=0, sequences=0, context=0, seconds=0.01) -> StepReport:
    return StepReport(StepShape(prompt, pairs, sequences, context), seconds)


def test_a_thousand_steps_of_one_shape_leave_those_of_another():
    samples = Samples()
    samples.add(report(prompt=64, pairs=2080), 0.0)
    samples.add(report(sequences=8, context=800), 1.0)
    for number in range(1000):
        samples.add(report(sequences=1, context=100), 2.0 + number)
    rows, _, at = samples.arrays()
    assert len(rows) == len(samples) == 2 + BIN_SAMPLES
    assert [1.0, 64.0, 2080.0, 0.0, 0.0] in rows.tolist()
    assert [1.0, 0.0, 0.0, 8.0, 800.0] in rows.tolist()
    assert at.max() == 1001.0, "the latest are kept"


def test_prompts_of_every_size_leave_all_decode_steps():
    samples = Samples()
    samples.add(report(sequences=2, context=50), 0.0)
    for size in range(20):
        for before in range(20):
            samples.add(report(prompt=1 << size, pairs=1 << (size + before)), 1.0)
    assert len(samples) <= 1 + KIND_BINS * BIN_SAMPLES
    assert [1.0, 0.0, 0.0, 2.0, 50.0] in samples.arrays()[0].tolist()


def test_no_more_are_kept_than_three_kinds_have_bins_for():
    samples, rng = Samples(), random.Random(1)
    for number in range(20_000):
        kind = rng.randrange(3)
        samples.add(
            report(
                prompt=rng.randrange(1, 1 << 14) if kind != 0 else 0,
                pairs=rng.randrange(1 << 24) if kind != 0 else 0,
                sequences=rng.randrange(1, 256) if kind != 1 else 0,
                context=rng.randrange(1, 1 << 20) if kind != 1 else 0,
            ),
            number,
        )
    assert len(samples) <= 3 * KIND_BINS * BIN_SAMPLES


def test_many_sizes_leave_the_largest():
    samples = Samples()
    samples.add(report(prompt=4096, pairs=4096 * 2000), 0.0)
    samples.add(report(prompt=16, pairs=16 * 100_000), 1.0)
    for number in range(1000):
        prompt, before = 1 << number % 10, 4 ** (number % 7)
        samples.add(report(prompt=prompt, pairs=prompt * before), 2.0 + number)
    rows = samples.arrays()[0].tolist()
    assert [1.0, 4096.0, 4096.0 * 2000, 0.0, 0.0] in rows
    assert [1.0, 16.0, 16.0 * 100_000, 0.0, 0.0] in rows


def test_nothing_is_an_empty_table():
    rows, seconds, at = Samples().arrays()
    assert rows.shape == (0, 5)
    assert len(seconds) == len(at) == 0
