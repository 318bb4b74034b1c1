"""What is told of a request at its end."""

import asyncio
from contextlib import aclosing

import pytest

from baton import errors
from services.router.deadline import Deadline
from services.router.report import Outcome
from tests.support.router_parts import RouterParts, request


async def test_everyone_hears_of_each_request_once_however_it_ends():
    reports, told = [], []
    parts = RouterParts(sinks=[reports.append, told.append])
    await parts.run()
    async with aclosing(parts.events(request(max_tokens=9))) as events:
        await anext(events)
    parts.legs.prefill_faults = [errors.InternalError("broken")]
    with pytest.raises(errors.InternalError):
        await parts.run()
    parts.dispatcher.refusal = errors.Exhausted("too late", reason="TARGET_MISSED")
    with pytest.raises(errors.Exhausted):
        await parts.run()
    outcomes = [report.outcome for report in reports]
    assert outcomes == [Outcome.COMPLETED, Outcome.CANCELLED, Outcome.FAILED, Outcome.REFUSED]
    assert [report.reason for report in reports] == ["", "", "INTERNAL", "TARGET_MISSED"]
    assert reports == told
    completed, cancelled, failed, refused = reports
    assert completed.usage.completion_tokens == 6
    assert cancelled.usage.completion_tokens >= 1
    assert failed.usage.completion_tokens == 0
    assert refused.placement is None


async def test_the_caller_is_told_before_the_last_event():
    order = []
    parts = RouterParts()
    stream = parts.generator.generate(request(), Deadline(), lambda _: order.append("report"))
    async with aclosing(stream) as events:
        async for event in events:
            order.append(type(event).__name__)
    assert order[-2:] == ["report", "Completed"]
    assert order.count("report") == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.COMPLETED),
        (asyncio.CancelledError(), Outcome.CANCELLED),
        (GeneratorExit(), Outcome.CANCELLED),
        (errors.Exhausted("no", reason="TARGET_OUT_OF_REACH"), Outcome.REFUSED),
        (errors.Exhausted("no", reason="QUEUE_FULL"), Outcome.FAILED),
        (ValueError(), Outcome.FAILED),
    ],
)
def test_outcomes(error, outcome):
    assert Outcome.of(error) is outcome


async def test_requests_in_progress_are_told_as_if_they_ended_now():
    parts = RouterParts()
    assert parts.reporter.in_progress(5) == ()
    async with aclosing(parts.events(request(request_id="mine", max_tokens=9))) as events:
        await anext(events)
        [report] = parts.reporter.in_progress(5)
        assert parts.reporter.in_progress(0) == ()
        assert report.usage.completion_tokens >= 1
        assert report.request_id == "mine"
    assert parts.reporter.in_progress(5) == ()


async def test_what_never_had_its_turn_spent_its_time_in_the_queue():
    reports = []
    parts = RouterParts(sinks=[reports.append])
    parts.dispatcher.refusal = errors.Exhausted("too late", reason="TARGET_MISSED")
    with pytest.raises(errors.Exhausted):
        await parts.run()
    [timings] = [report.timings for report in reports]
    assert timings.queue == timings.total > 0
    assert timings.prefill == 0
