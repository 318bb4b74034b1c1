"""Spans of a process, and whose parts they are."""

import asyncio
import time

import pytest

from baton.errors import Unavailable
from services.common.telemetry import context, tracing
from tests.support.tracing import by_name, everything, traced

CALLER = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),)


async def test_a_span_is_a_part_of_the_one_around_it_and_of_its_tasks_too():
    async def work():
        with tracing.span("inner", tokens=3):
            pass

    async with traced() as running:
        with tracing.span("outer"):
            await asyncio.create_task(work())
        with tracing.span("apart"):
            pass
    spans = by_name(running.ring)
    assert spans["inner"].parent_id == spans["outer"].span_id
    assert spans["inner"].attributes == {"baton.tokens": 3}
    assert spans["apart"].trace_id != spans["outer"].trace_id
    assert spans["outer"].parent_id == b""


async def test_without_traces_nothing_is_said_or_left_behind():
    async with traced():
        assert tracing.active() is not None
    assert tracing.active() is None
    with tracing.span("nobody") as span:
        assert not span.is_recording()
        assert context.inject() == ()
    assert context.current() is None


@pytest.mark.parametrize(
    ("error", "told"),
    [(Unavailable("gone"), "Unavailable: gone"), (asyncio.CancelledError(), "cancelled")],
)
async def test_what_leaves_a_span_is_told_and_raised(error, told):
    async with traced() as running:
        with pytest.raises(type(error)), tracing.span("x"):
            raise error
    assert by_name(running.ring)["x"].error == told
    assert context.current() is None


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_all_are_remembered_whatever_is_sampled(ratio):
    async with traced(trace_ratio=ratio) as running:
        with tracing.span("outer") as outer, tracing.span("inner") as inner:
            flags = {one.get_span_context().trace_flags.sampled for one in (outer, inner)}
            (_, parent), *_ = context.inject()
    assert flags == {ratio == 1.0}
    assert int(parent[-2:], 16) & 1 == ratio
    assert len(everything(running.ring)) == 2


@pytest.mark.parametrize("sampled", [0, 1])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_who_calls_decides_what_is_sampled(ratio, sampled):
    ((key, parent),) = CALLER
    caller = context.extract([(key, f"{parent[:-1]}{sampled}")])
    async with traced(trace_ratio=ratio):
        span = tracing.begin("x", parent=caller)
        assert span.get_span_context().trace_flags.sampled == sampled
        span.end()


async def test_some_of_many_are_sampled():
    async with traced(trace_ratio=0.25):
        spans = [tracing.begin("x") for _ in range(400)]
        sampled = sum(one.get_span_context().trace_flags.sampled for one in spans)
    assert 50 < sampled < 150


async def test_moments_of_the_monotonic_clock_are_on_the_wall_clock():
    now = tracing.wall_ns(time.monotonic())
    assert abs(now - time.time_ns()) < 1e9
    assert tracing.wall_ns(5.5) - tracing.wall_ns(2.25) == 3_250_000_000
