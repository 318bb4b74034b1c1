"""The metrics of a process: text, server, and sources that fail or hang."""

import asyncio
import socket
import time
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from services.common.telemetry.metric import Source, counter, gauge, histogram
from services.common.telemetry.metrics import Metrics, measured
from services.common.telemetry.process_metrics import METRICS as PROCESS_METRICS
from services.common.telemetry.tally import Tally

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
DONE = counter("baton_test_done_total", "Done.", "how")
HELD = gauge("baton_test_held_bytes", "Held.")
TOOK = histogram("baton_test_took_seconds", "Took.")


def source(*readings, name="test"):
    async def read():
        return readings

    return Source(name, read, (DONE, HELD, TOOK))


def tally(*values, trace_id=b""):
    made = Tally((0.1, 1.0))
    for value in values:
        made.observe(value, trace_id)
    return made


async def scrape(metrics, accept=""):
    body, media_type = await asyncio.to_thread(metrics.text, accept)
    parse = parse_openmetrics if "openmetrics" in media_type else parse_text
    return {family.name: family for family in parse(body.decode())}


def values(family):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for sample in family.samples
    }


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
async def test_tells_values_of_all_kinds(accept):
    metrics = Metrics("router", "router-1")
    metrics.add(source(DONE.at(3, "well"), HELD.at(0.5), TOOK.at(tally(0.05, 0.5, 7))))
    found = await scrape(metrics, accept)
    who = (("process", "router-1"), ("service", "router"))
    done = values(found["baton_test_done"])
    assert done == {("baton_test_done_total", ("how", "well"), *who): 3}
    assert values(found["baton_test_held_bytes"]) == {("baton_test_held_bytes", *who): 0.5}
    took = values(found["baton_test_took_seconds"])
    buckets = [took["baton_test_took_seconds_bucket", ("le", le), *who] for le in BOUNDS]
    assert buckets == [1, 2, 3]
    assert took["baton_test_took_seconds_count", *who] == 3
    assert took["baton_test_took_seconds_sum", *who] == pytest.approx(7.55)


BOUNDS = ("0.1", "1.0", "+Inf")


async def test_examples_are_in_openmetrics_alone():
    metrics = Metrics("router", "router-1")
    metrics.add(source(TOOK.at(tally(0.5, trace_id=b"\xab" * 16))))
    for accept, expected in (("", []), (OPENMETRICS, [{"trace_id": "ab" * 16}])):
        samples = (await scrape(metrics, accept))["baton_test_took_seconds"].samples
        assert [one.exemplar.labels for one in samples if one.exemplar] == expected


async def test_what_has_no_value_is_declared_all_the_same():
    metrics = Metrics("router", "router-1")
    metrics.add(source())
    assert (await scrape(metrics))["baton_test_held_bytes"].type == "gauge"


async def test_tells_of_the_process():
    async with measured("router", "router-1") as metrics:
        await asyncio.sleep(0.3)
        found = await scrape(metrics)
    names = {metric.name for metric in PROCESS_METRICS}
    assert names <= found.keys()
    (resident,) = found["baton_process_resident_bytes"].samples
    assert resident.value > 1e6
    (started,) = found["baton_process_start_time_seconds"].samples
    assert 0 < time.time() - started.value < 24 * 3600
    assert sum(one.value for one in found["baton_process_loop_lag_seconds"].samples) > 0


async def test_a_source_that_fails_is_left_out_and_counted():
    async def fail():
        raise RuntimeError("broken")

    metrics = Metrics("router", "router-1")
    metrics.add(Source("bad", fail, (HELD,)))
    metrics.add(Source("good", source(DONE.at(1, "well")).read, (DONE,)))
    for errors in (1, 2):
        found = await scrape(metrics)
        assert not found["baton_test_held_bytes"].samples
        assert found["baton_test_done"].samples
        by_source = {s.labels["source"]: s.value for s in found["baton_scrape_errors"].samples}
        assert by_source == {"process": 0, "bad": errors, "good": 0}


async def test_a_source_that_hangs_holds_nothing_up():
    ended = asyncio.Event()

    async def hang():
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    metrics = Metrics("router", "router-1", scrape_s=0.1)
    metrics.add(Source("hung", hang, (HELD,)))
    metrics.add(Source("good", source(DONE.at(1, "well")).read, (DONE,)))
    found = await scrape(metrics)
    assert found["baton_test_done"].samples
    assert not found["baton_test_held_bytes"].samples
    async with asyncio.timeout(1.0):
        await ended.wait()


def test_a_loop_that_is_stuck_or_gone_is_told_of_in_time():
    async def make():
        return Metrics("router", "router-1", scrape_s=0.1)

    with asyncio.Runner() as runner:
        metrics = runner.run(make())  # no loop runs now
        began = time.monotonic()
        body, _ = metrics.text()
        assert time.monotonic() - began < 5.0
        assert b'baton_scrape_errors_total{process="router-1",service="router",source=' in body
        runner.run(asyncio.sleep(0))
    body, _ = metrics.text()
    errors = [line for line in body.decode().splitlines() if "errors_total{" in line]
    assert errors[0].endswith(" 2.0")


def get(address, accept=""):
    asked = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(asked, timeout=5.0) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


async def test_serves_both_formats_and_stops():
    took = []
    for _ in range(3):
        async with measured("router", "router-1", "127.0.0.1:0"):
            began = time.monotonic()
        took.append(time.monotonic() - began)
    assert min(took) < 0.4  # nobody waits for the server's next look
    async with measured("router", "router-1", "127.0.0.1:0") as metrics:
        kind, _ = await asyncio.to_thread(get, metrics.address)
        assert kind.startswith("text/plain")
        kind, body = await asyncio.to_thread(get, metrics.address, OPENMETRICS)
        assert kind.startswith("application/openmetrics-text")
        assert body.endswith("# EOF\n")
        address = metrics.address
    with pytest.raises(ConnectionRefusedError):
        host, _, port = address.partition(":")
        socket.create_connection((host, int(port)), 1.0)


async def test_answers_while_the_loop_is_busy():
    async with measured("router", "router-1", "127.0.0.1:0") as metrics:
        metrics._scrape_s = 0.1
        asked = asyncio.create_task(asyncio.to_thread(get, metrics.address))
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - that is the point
        _, body = await asked
    assert 'source="process"' in body


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", ":"])
async def test_an_address_that_is_none(address):
    with pytest.raises(OSError, match="host:port"):
        async with measured("router", "router-1", address):
            pass


async def test_an_address_that_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match="cannot serve metrics"):
            async with measured("router", "router-1", address):
                pass
