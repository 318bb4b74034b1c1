"""What goes to a collector, a real one over gRPC; and that one which is away disturbs nobody."""

import logging
import time

import pytest

from services.common.telemetry import tracing
from tests.support.collector import Collector
from tests.support.tracing import everything, settings, traced


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_a_collector_has_all_that_is_sampled_when_the_process_ends(ratio):
    with Collector() as collector:
        async with traced("p-0", otlp_endpoint=collector.address, trace_ratio=ratio) as running:
            for _ in range(20):
                with tracing.span("outer"), tracing.span("inner"):
                    pass
        assert len(everything(running.ring)) == 40
        assert len(collector.spans) == 40 * ratio
        assert {process for process, _ in collector.spans} <= {"p-0"}


async def test_a_collector_that_dies_slows_nothing_down_and_is_not_waited_for(caplog):
    with Collector() as collector:
        running = tracing.start(settings(otlp_endpoint=collector.address), "test", "p-0")
        collector.kill()
        began = time.monotonic()
        for _ in range(10_000):  # more than are kept for it
            tracing.begin("x").end()
        assert time.monotonic() - began < 5.0
        began = time.monotonic()
        with caplog.at_level(logging.WARNING):
            await running.close(patience_s=0.2)
        assert time.monotonic() - began < 5.0
        assert "could not be exported" in caplog.text
    assert len(running.ring) == 10_000
