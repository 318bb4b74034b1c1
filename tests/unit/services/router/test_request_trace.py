"""The spans of requests at their router; workers are fakes."""

import asyncio
from contextlib import aclosing

import pytest

from baton import errors
from services.common.telemetry import context
from services.router.report import Outcome
from tests.support.router_parts import RouterParts, request
from tests.support.tracing import by_name, everything, traced

GONE = errors.Unavailable("gone")


class Traced:
    """A router's parts whose reports and spans are kept."""

    def __init__(self, *outputs, **options):
        self.reports = []
        self.headers = []
        self.parts = RouterParts(*outputs, sinks=[self.reports.append], **options)
        for leg in ("prefill", "decode"):
            setattr(self.parts.legs, leg, self._noting(getattr(self.parts.legs, leg)))

    def _noting(self, leg):
        def call(*arguments):
            *others, headers = arguments
            self.headers.append(headers)
            return leg(*others, headers)

        return call

    @property
    def report(self):
        (report,) = self.reports
        return report


async def test_queue_and_prefill_add_up_to_the_time_to_first_token():
    async with traced() as running:
        told = Traced()
        await told.parts.run(request(request_id="mine"))
    spans = by_name(running.ring)
    root, queue, prefill = spans["generate"], spans["queue"], spans["prefill"]
    assert {one.parent_id for one in (queue, prefill, spans["decode"])} == {root.span_id}
    assert {one.trace_id for one in spans.values()} == {told.report.trace_id}
    assert root.start_ns == queue.start_ns
    assert queue.end_ns == prefill.start_ns
    timings = told.report.timings
    assert prefill.end_ns - queue.start_ns == pytest.approx(
        timings.time_to_first_token * 1e9, abs=1_000
    )
    assert queue.end_ns - queue.start_ns == pytest.approx(timings.queue * 1e9, abs=1_000)
    assert root.attributes["baton.request_id"] == "mine"
    assert root.attributes["gen_ai.usage.input_tokens"] == len("prompt")
    assert root.attributes["gen_ai.usage.output_tokens"] == len("hello\0")
    assert root.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert [moment.name for moment in spans["decode"].moments] == ["first_step", "last_step"]


async def test_each_leg_is_told_its_span():
    async with traced() as running:
        told = Traced()
        await told.parts.run()
    spans = by_name(running.ring)
    for headers, name in zip(told.headers, ("prefill", "decode"), strict=True):
        parent = context.extract(headers).get_span_context()
        assert parent.span_id.to_bytes(8, "big") == spans[name].span_id
        assert parent.trace_id.to_bytes(16, "big") == told.report.trace_id


async def test_a_prompt_beside_a_decode_batch_has_the_same_parts():
    async with traced() as running:
        told = Traced(prefill=0)
        await told.parts.run()
    spans = by_name(running.ring)
    queue, prefill, decode = spans["queue"], spans["prefill"], spans["decode"]
    assert queue.end_ns == prefill.start_ns
    elapsed_s = told.report.timings.time_to_first_token
    assert prefill.end_ns - queue.start_ns == pytest.approx(elapsed_s * 1e9, abs=1_000)
    assert decode.start_ns < prefill.end_ns < decode.end_ns


async def test_retries_are_events_of_one_trace():
    async with traced() as running:
        told = Traced(prefill=2, decode=2)
        told.parts.legs.prefill_faults = [GONE]
        told.parts.legs.decode_faults = [(1, GONE)]
        await told.parts.run()
    spans = everything(running.ring)
    assert {one.trace_id for one in spans} == {told.report.trace_id}
    names = [one.name for one in spans]
    assert (names.count("queue"), names.count("prefill"), names.count("decode")) == (1, 1, 2)
    prefill = by_name(running.ring)["prefill"]
    assert [moment.name for moment in prefill.moments] == ["placed", "retry", "placed"]
    failed, good = (one for one in spans if one.name == "decode")
    assert "Unavailable" in failed.error
    assert not good.error
    assert good.attributes["baton.attempt"] > failed.attributes["baton.attempt"]
    (root,) = (one for one in spans if one.name == "generate")
    assert not root.error


async def test_each_choice_is_decoded_in_a_span_of_its_own():
    async with traced() as running:
        told = Traced("ab\0", "xy\0")
        await told.parts.run_choices(request(n=2))
    decodes = [one for one in everything(running.ring) if one.name == "decode"]
    assert {one.attributes["baton.choice"] for one in decodes} == {0, 1}


@pytest.mark.parametrize("window", ["turn", "prefill", "decode"])
async def test_a_client_that_leaves_ends_all_spans(window):
    parts = RouterParts()
    await parts.run()
    stop_at = parts.windows.names.index(window)
    async with traced() as running:
        told = Traced(stop_at=stop_at)
        task = asyncio.create_task(told.parts.run())
        async with asyncio.timeout(5):
            await told.parts.windows.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    spans = by_name(running.ring)
    assert told.report.outcome is Outcome.CANCELLED
    assert spans["generate"].error == "cancelled"
    open_part = {"turn": "queue", "prefill": "prefill", "decode": "decode"}[window]
    assert spans[open_part].error == "cancelled"


async def test_a_request_that_can_never_work_has_a_span_that_says_so():
    async with traced() as running:
        told = Traced()
        with pytest.raises(errors.InvalidRequest):
            await told.parts.run(request(max_tokens=10**9))
    spans = by_name(running.ring)
    assert "max_tokens" in spans["generate"].error
    assert spans["generate"].attributes["error.type"]
    assert set(spans) == {"generate", "queue"}


async def test_the_callers_span_is_the_parent_and_nothing_is_left_current():
    caller = context.extract(
        [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    )
    async with traced() as running:
        told = Traced()
        with context.attached(caller):
            async with aclosing(told.parts.all_events()) as events:
                await anext(events)
            assert context.current() is caller
    root = by_name(running.ring)["generate"]
    assert root.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert root.parent_id.hex() == "b7ad6b7169203331"


async def test_without_traces_requests_go_their_way():
    told = Traced()
    await told.parts.run()
    assert told.report.trace_id == b""
    assert told.headers == [(), ()]
