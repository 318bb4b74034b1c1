"""Metrics of a worker: they are what its status tells, and cost its engine next to nothing."""

import time

from engine.steps import StepReport, StepShape
from services.worker import device_metrics as device
from services.worker import metrics as told
from services.worker.metrics import WorkerMetrics
from services.worker.step_times import StepTimes
from tests.support.scrape import read

DECODE = StepShape(prompt_tokens=0, prompt_pairs=0, sequences=3, context_tokens=90)
MIXED = StepShape(prompt_tokens=8, prompt_pairs=36, sequences=3, context_tokens=90)
PREFILL = StepShape(prompt_tokens=8, prompt_pairs=36, sequences=0, context_tokens=0)


async def test_it_tells_what_the_status_tells(pair, prompt_of):
    await pair.generate(prompt_of(20), max_tokens=5)
    for one in (pair.prefill, pair.decode):
        status = await one.becomes_clean()
        found = await read(WorkerMetrics(one.host).sources())
        assert found.value(told.PREFILLED) == status.prefilled_tokens
        assert found.value(told.SAMPLED) == status.sampled_tokens
        assert found.value(told.CACHED) == status.cached_tokens
        assert found.value(told.BATCH) == found.value(told.STEP) == status.steps
        assert found.value(device.STEPS) == status.steps
        assert found.value(told.PUBLISHED_BLOBS) == status.published_blobs
        assert found.value(told.PUBLISHED_BYTES) == status.published_bytes
        assert found.value(told.FETCHED_BYTES) == status.fetched_bytes
        assert found.value(told.RUNS, outcome="finished") == status.finished_requests
        fetching_s = status.fetching.ToTimedelta().total_seconds()
        assert abs(found.value(told.FETCH, "_sum") - fetching_s) < 1e-5
        for group in status.kv_groups:
            assert found.value(told.TOTAL_BLOCKS, group=group.name) == group.total_blocks
            assert found.value(told.CACHED_BLOCKS, group=group.name) == group.cached_blocks
            assert found.value(told.USED_BLOCKS, group=group.name) == 0
    assert found.value(told.FETCH) > 0
    assert found.value(told.ATTACHED) == found.value(told.ALIVE) == 1
    assert found.value(told.DRAINING) == 0


async def test_a_batch_of_two_is_counted_as_such(pair, prompt_of):
    metrics = WorkerMetrics(pair.decode.host)
    before = await read(metrics.sources())
    await pair.generate(prompt_of(6), max_tokens=5)
    after = await read(metrics.sources())
    steps = after.value(told.BATCH) - before.value(told.BATCH)
    sizes = after.value(told.BATCH, "_sum") - before.value(told.BATCH, "_sum")
    assert steps == sizes > 0  # one sequence in each


async def test_what_a_canary_finds_is_told(pair):
    metrics = WorkerMetrics(pair.decode.host)
    canary = pair.decode.host.canary
    canary.on_drift(0.02)
    canary.alarms += 1
    found = await read(metrics.sources())
    assert found.value(device.CANARIES) == 1
    assert found.value(device.CANARIES, "_bucket", le="0.01") == 0
    assert found.value(device.CANARIES, "_bucket", le="0.03") == 1
    assert found.value(device.CANARY_ALARMS) == 1


def test_steps_are_told_by_phase():
    times = StepTimes()
    for shape, seconds in ((DECODE, 0.01), (DECODE, 0.02), (MIXED, 0.3), (PREFILL, 4.0)):
        times.observe(StepReport(shape, seconds))
    told_by_phase = {labels: (len(tally), tally.total) for labels, tally in times.by_phase}
    assert told_by_phase == {
        ("prefill",): (1, 4.0),
        ("decode",): (2, 0.03),
        ("mixed",): (1, 0.3),
    }


def test_a_step_costs_the_engine_microseconds():
    times, report = StepTimes(), StepReport(MIXED, 0.0123)
    best = min(_seconds(times, report) for _ in range(5))
    assert best / 2000 < 20e-6


def _seconds(times, report):
    began = time.perf_counter()
    for _ in range(2000):
        times.observe(report)
    return time.perf_counter() - began
