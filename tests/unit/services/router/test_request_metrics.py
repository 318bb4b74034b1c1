"""Metrics of requests, from their reports."""

from contextlib import aclosing, suppress
from dataclasses import replace

import pytest

from baton import errors
from services.router import request_metrics as told
from services.router.request import ClassTargets
from services.router.request_metrics import RequestMetrics
from tests.support.router_parts import RouterParts, request
from tests.support.scrape import read

TARGETS = ClassTargets(interactive_ttft_s=2.5)


@pytest.fixture
def metrics():
    return RequestMetrics(TARGETS)


@pytest.fixture
async def report():
    """Of a completed request."""
    reports = []
    await RouterParts(sinks=[reports.append]).run()
    return reports[0]


def with_timings(report, **timings):
    return replace(report, timings=replace(report.timings, **timings))


async def test_all_is_told_as_zero_before_the_first_request(metrics):
    found = await read(metrics.source())
    for metric in told.METRICS:
        if metric.labels == ("class",):
            classes = {
                one.labels["class"] for one in found.samples if one.name.startswith(metric.name)
            }
            assert classes == {"interactive", "batch"}
    assert found.value(told.ACCEPTED, outcome="refused") == 0
    assert found.value(told.TTFT_TARGET, **{"class": "interactive"}) == 2.5


async def test_a_completed_request_is_told_in_full(metrics, report):
    report = with_timings(
        report, queue=0.2, prefill=0.3, time_to_first_token=0.5, handoff_gap=0.05, total=3.0,
        predicted_ttft=0.25,
    )  # fmt: skip
    metrics.record(replace(report, itl_s=0.1))
    found = await read(metrics.source())
    mine = {"class": "interactive"}
    sums = {
        told.QUEUE: 0.2,
        told.PREFILL: 0.3,
        told.TTFT: 0.5,
        told.ITL: 0.1,
        told.HANDOFF_GAP: 0.05,
        told.DURATION: 3.0,
        told.PER_OUTPUT_TOKEN: 3.0 / report.usage.completion_tokens,
        told.PROMPT: report.usage.prompt_tokens,
        told.OUTPUT: report.usage.completion_tokens,
    }
    for metric, expected in sums.items():
        assert found.value(metric, **mine) == 1, metric.name
        assert found.value(metric, "_sum", **mine) == pytest.approx(expected), metric.name
    assert found.value(told.TTFT_RATIO, "_sum") == pytest.approx(2.0)
    assert found.value(told.TOKEN_GAP, **mine) == report.usage.completion_tokens - 1
    assert found.value(told.ACCEPTED, outcome="completed", **mine) == 1
    assert found.value(told.ACCEPTED) == 1


@pytest.mark.parametrize(
    ("ttft_s", "itl_s", "held"),
    [(0.5, 0.1, "yes yes"), (9.5, 0.1, "no yes"), (0.5, 9.0, "yes no"), (0.5, None, "yes yes")],
)
async def test_goodput_is_what_held_both_targets(metrics, report, ttft_s, itl_s, held):
    placement = replace(report.placement, ttft_target_s=1.0, itl_target_s=0.2)
    report = with_timings(report, time_to_first_token=ttft_s)
    metrics.record(replace(report, placement=placement, itl_s=itl_s))
    found = await read(metrics.source())
    ttft, itl = held.split()
    assert found.value(told.TTFT_JUDGED, held=ttft) == found.value(told.TTFT_JUDGED) == 1
    assert found.value(told.ITL_JUDGED, held=itl) == found.value(told.ITL_JUDGED) == 1
    good = held == "yes yes"
    assert found.value(told.GOOD_REQUESTS) == good
    assert found.value(told.GOOD_TOKENS) == good * report.usage.completion_tokens


async def test_batch_requests_are_told_apart(metrics):
    parts = RouterParts(sinks=[metrics.record])
    await parts.run(request(urgency={"batch": True}))
    found = await read(metrics.source())
    assert found.value(told.TTFT, **{"class": "batch"}) == 1
    assert found.value(told.TTFT, **{"class": "interactive"}) == 0


async def test_requests_that_did_not_complete_have_no_duration(metrics):
    parts = RouterParts(sinks=[metrics.record])
    async with aclosing(parts.events(request(max_tokens=9))) as events:
        await anext(events)
    parts.dispatcher.refusal = errors.Exhausted("too late", reason="TARGET_MISSED")
    with suppress(errors.Exhausted):
        await parts.run()
    found = await read(metrics.source())
    assert found.value(told.DURATION) == 0
    assert found.value(told.TTFT) == 1  # of the one whose client went
    assert found.value(told.QUEUE) == 1  # the other had no turn
    assert found.value(told.ACCEPTED, outcome="cancelled") == 1
    assert found.value(told.ACCEPTED, outcome="refused") == 1
    assert found.value(told.TTFT_JUDGED) == 0


async def test_buckets_name_traces(metrics, report):
    metrics.record(replace(report, trace_id=b"\xcd" * 16))
    found = await read(metrics.source())
    named = {one.name for one in found.samples if one.exemplar}
    assert {f"{metric.name}_bucket" for metric in (told.TTFT, told.ITL, told.DURATION)} <= named
    traces = {one.exemplar.labels["trace_id"] for one in found.samples if one.exemplar}
    assert traces == {"cd" * 16}


async def test_what_is_gone_on_with_is_not_judged_by_its_prediction(metrics, report):
    report = with_timings(report, predicted_ttft=0.25)
    resumed = replace(report.generation, emitted=((1,),))
    metrics.record(replace(report, generation=resumed))
    assert resumed.resumed
    assert (await read(metrics.source())).value(told.TTFT_RATIO) == 0
