"""The last reports, and reports as messages."""

from contextlib import aclosing, suppress

import pytest

from baton import errors
from baton.v1 import inference_pb2
from services.router.recent import RecentReports
from services.router.report_messages import report_message
from tests.support.router_parts import RouterParts, request


async def reports_of(*wanted):
    """Reports of requests that ended so."""
    reports = []
    parts = RouterParts(sinks=[reports.append])
    for want in wanted:
        parts.dispatcher.refusal = want
        with suppress(errors.BatonError):
            urgency = {"tenant": "acme", "batch": True}
            await parts.run(request(request_id="mine", urgency=urgency))
    return reports


@pytest.fixture
async def report():
    [report] = await reports_of(None)
    return report


async def test_a_report_says_where_the_time_went(report):
    message = report_message(report)
    assert (message.request_id, message.tenant) == ("mine", "acme")
    assert message.outcome == inference_pb2.REQUEST_OUTCOME_COMPLETED
    assert message.request_class == inference_pb2.REQUEST_CLASS_BATCH
    assert message.reason == ""
    assert message.usage.prompt_tokens == len(report.generation.prompt_ids)
    assert message.usage.completion_tokens == 6
    assert message.choices == 1
    assert message.arrival.ToMicroseconds() == round(report.arrival_s * 1e6)
    timings = message.timings
    parts = timings.queue.ToNanoseconds() + timings.prefill.ToNanoseconds()
    assert abs(parts - timings.time_to_first_token.ToNanoseconds()) <= 1
    assert message.targets.ttft.ToTimedelta().total_seconds() == report.placement.ttft_target_s
    assert message.HasField("inter_token")


async def test_a_refused_request_had_no_targets_and_has_a_reason():
    [refused] = await reports_of(errors.Exhausted("too late", reason="TARGET_MISSED"))
    message = report_message(refused)
    assert message.outcome == inference_pb2.REQUEST_OUTCOME_REFUSED
    assert message.reason == "TARGET_MISSED"
    assert not message.HasField("targets")
    assert not message.HasField("prefill")
    assert not message.HasField("inter_token")


async def test_a_cancelled_request_counts_what_came():
    kept = RecentReports()
    parts = RouterParts(sinks=[kept.keep])
    async with aclosing(parts.events(request(max_tokens=9))) as events:
        await anext(events)
    [message] = kept.after().requests
    assert message.outcome == inference_pb2.REQUEST_OUTCOME_CANCELLED


def numbers(answer):
    return [message.choices for message in answer.requests]


@pytest.fixture
def kept(report):
    """Five reports, of which three fit."""
    kept = RecentReports(size=3)
    for number in range(1, 6):
        object.__setattr__(report.generation, "choices", number)
        kept.keep(report)
    return kept


@pytest.mark.parametrize(
    ("after", "limit", "expected"),
    [
        (0, 0, [3, 4, 5]),
        (0, 2, [4, 5]),
        (3, 0, [4, 5]),
        (3, 1, [5]),
        (5, 0, []),
        (1, 9, [3, 4, 5]),
        (99, 0, [3, 4, 5]),
    ],
)
def test_what_came_after(kept, after, limit, expected):
    answer = kept.after(after, limit)
    assert numbers(answer) == expected
    assert answer.sequence == 5


def test_nothing_yet():
    answer = RecentReports().after()
    assert (numbers(answer), answer.sequence) == ([], 0)
