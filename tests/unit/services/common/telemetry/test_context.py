"""Whose part work is, within a process and over a call's metadata."""

import asyncio

import pytest

from services.common.telemetry import context, tracing
from tests.support.tracing import traced

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_what_one_process_injects_another_one_extracts():
    caller = context.extract([("traceparent", PARENT), ("tracestate", "vendor=1"), ("other", "x")])
    assert context.trace_id_of(caller).hex() == PARENT[3:35]
    assert context.inject(caller) == (("traceparent", PARENT), ("tracestate", "vendor=1"))


def test_a_long_tracestate_is_left_out():
    state = ",".join(f"k{index}=v" for index in range(31))
    for more, passed in (("", True), ("x" * context.MAX_TRACESTATE_CHARACTERS, False)):
        caller = context.extract([("traceparent", PARENT), ("tracestate", state + more)])
        assert (context.TRACESTATE in dict(context.inject(caller))) is passed
        assert context.trace_id_of(caller).hex() == PARENT[3:35]


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (),
        [("tracestate", "vendor=1")],
        [("traceparent", "nonsense")],
        [("traceparent", f"00-{'0' * 32}-{'1' * 16}-01")],
        [("traceparent", PARENT.encode())],
        [("traceparent", "x" * 100_000)],
    ],
)
def test_what_can_not_be_read_is_no_parent(metadata):
    assert context.extract(metadata) is None


async def test_the_current_span_is_the_tasks():
    async with traced():
        span = tracing.begin("x")

        async def other():
            with context.attached(None):
                await asyncio.sleep(0)
                return context.current()

        with context.attached(span):
            assert context.inject() == context.inject(span)
            assert await asyncio.create_task(other()) is None
            assert context.current() is span
        assert context.current() is None
        span.end()


async def test_a_generator_may_be_closed_from_another_task():
    async def numbers(span):
        with context.attached(span):
            yield 1

    async with traced():
        generator = numbers(tracing.begin("x"))
        await asyncio.create_task(anext(generator))
        await asyncio.create_task(generator.aclose())
        assert context.current() is None
