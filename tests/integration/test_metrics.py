"""Metrics of real processes under a little load: complete, sound, and true."""

import asyncio
import json
import time

import httpx2
import pytest
import yaml

from baton.client import AsyncClient
from services.catalogue.__main__ import ROOT
from services.catalogue.rooms import all_metrics
from services.common.telemetry.metric import Kind
from services.common.telemetry.metrics import SCRAPE_ERRORS
from services.gateway import metrics as gateway
from services.planner import metrics as planner
from services.router import metrics as router
from services.router import request_metrics as requests
from services.transfer import metrics as transfer
from services.worker import device_metrics as device
from services.worker import metrics as worker
from tests.support.cluster import Cluster
from tests.support.promql import expression_of, names_in
from tests.support.scrape import OPENMETRICS, scrape

COMPLETED, BATCH = 8, 3
INPUT_TOKENS, OUTPUT_TOKENS = 50, 12


@pytest.fixture(scope="module")
def cluster(model, tmp_path_factory):
    """Has served some requests; one was cancelled, one invalid."""
    run_dir = tmp_path_factory.mktemp("measured")
    with Cluster(model, run_dir=run_dir, gateway=True) as running:
        asyncio.run(load(running))
        running.wait_idle(5.0)
        yield running


async def load(cluster):
    async with AsyncClient(cluster.address) as client:
        kinds = ["batch"] * BATCH + ["interactive"] * (COMPLETED - BATCH)
        wanted = [generate(client, salt, request_class=one) for salt, one in enumerate(kinds)]
        await asyncio.gather(*wanted)
        async with client.generate(prompt(99), max_tokens=400, ignore_eos=True) as events:
            await anext(aiter(events))
        with pytest.raises(Exception, match="max_tokens"):
            await generate(client, 0, max_tokens=10**7)
    async with httpx2.AsyncClient(base_url=cluster.url) as http:
        assert (await http.get("/v1/models")).status_code == 200
        assert (await http.get("/nowhere")).status_code == 404


def prompt(salt):
    return [3 + (i * 31 + salt * 7919 + i * i) % 250 for i in range(INPUT_TOKENS)]


async def generate(client, salt, *, max_tokens=OUTPUT_TOKENS, **options):
    options |= {"temperature": 0.0, "ignore_eos": True}
    async with client.generate(prompt(salt), max_tokens=max_tokens, **options) as events:
        return [event async for event in events]


def addresses(cluster):
    """Where each process serves its metrics, as `baton status --json` tells."""
    fleet = cluster.fleet()
    found = {
        "router": fleet.router.metrics_address,
        "gateway": cluster.options.http_address,
        "transfer": fleet.transfers[0].status.metrics_address,
    }
    return found | {one.record.worker_id: one.status.metrics_address for one in fleet.workers}


def scrapes(cluster, accept=""):
    return {name: scrape(address, accept) for name, address in addresses(cluster).items()}


def served():
    """All metrics but those of the planner, which does not run here."""
    return [metric for metric in all_metrics() if metric not in planner.METRICS]


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_process_tells_who_it_is(cluster, accept):
    found = scrapes(cluster, accept)
    assert set(found) == {"router", "gateway", "transfer", "prefill-0", "decode-0"}
    for name, told in found.items():
        assert {"baton_process_build_info", "baton_process_resident_bytes"} <= told.series_names
        services = {sample.labels["service"] for sample in told.samples}
        assert services == {name.partition("-")[0]}
        processes = {sample.labels["process"] for sample in told.samples}
        assert processes == {name}, "as in logs and traces"
        assert told.value(SCRAPE_ERRORS) == 0
        labelled = [(one.name, *sorted(one.labels.items())) for one in told.samples]
        assert len(labelled) == len(set(labelled))


def test_all_that_is_declared_is_told_and_nothing_else(cluster):
    told = {name for one in scrapes(cluster, OPENMETRICS).values() for name in one.families}
    assert told == {metric.name.removesuffix("_total") for metric in served()}


def test_dashboards_and_alerts_ask_for_what_is_told(cluster):
    told = {name for one in scrapes(cluster).values() for name in one.series_names} | {"up"}
    told |= {one.name + end for one in planner.METRICS for end in ("", "_bucket")}
    asked = set()
    for path in (ROOT / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            asked |= {target["expr"] for target in panel.get("targets", [])}
    groups = yaml.safe_load((ROOT / "dashboards/alerts.yaml").read_text())["groups"]
    asked |= {rule["expr"] for group in groups for rule in group["rules"]}
    assert len(asked) > 100
    for query in asked:
        assert names_in(expression_of(query)) <= told, query


def test_gauges_are_zero_while_nothing_is_done(cluster):
    cluster.wait_idle(5.0)
    found = scrapes(cluster)
    for metric in served():
        if metric.kind is Kind.GAUGE and not metric.stands:
            values = [
                sample.value
                for told in found.values()
                for sample in told.samples
                if sample.name == metric.name
            ]
            assert values, f"{metric.name} is told by nobody"
            assert not any(values), metric.name


def test_counts_are_those_of_the_status(cluster):
    found, fleet = scrapes(cluster), cluster.fleet()
    told, status = found["router"], fleet.router
    assert told.value(router.REQUESTS, outcome="completed") == status.completed_requests
    assert told.value(router.REQUESTS, outcome="cancelled") == status.cancelled_requests == 1
    assert told.value(router.REQUESTS, outcome="failed") == status.failed_requests == 1
    assert told.value(router.REQUESTS, reason="INVALID_REQUEST") == 1
    assert told.value(router.LOCAL) == status.local_prompts
    assert told.value(router.INDEXED) == status.indexed_blobs
    assert told.value(requests.TTFT_JUDGED, held="yes") == status.ttft_held
    assert told.value(requests.ITL_JUDGED, held="yes") == status.itl_held
    for one in fleet.workers:
        told, status = found[one.record.worker_id], one.status
        assert told.value(worker.PREFILLED) == status.prefilled_tokens
        assert told.value(worker.SAMPLED) == status.sampled_tokens
        assert told.value(worker.CACHED) == status.cached_tokens
        assert told.value(worker.BATCH) == status.steps
        assert told.value(worker.PUBLISHED_BLOBS) == status.published_blobs
        assert told.value(worker.FETCHED_BYTES) == status.fetched_bytes
        assert told.value(device.FLOPS) == sum(phase.flops for phase in status.phases)
        assert told.value(device.PEAK_FLOPS) == status.peaks.flops_per_second
    told, status = found["transfer"], fleet.transfers[0].status
    assert told.value(transfer.COMMITTED) == status.committed_blobs > 0
    assert told.value(transfer.ACQUIRED) == status.acquired_blobs > 0
    assert told.value(transfer.BLOBS) == status.blobs
    assert told.value(transfer.SEGMENT) == sum(one.size_bytes for one in status.segments)


def test_counts_are_what_clients_did(cluster):
    found = scrapes(cluster)
    told = found["router"]
    assert told.value(requests.TTFT, **{"class": "batch"}) == BATCH
    assert told.value(requests.ACCEPTED, outcome="completed") == COMPLETED
    assert told.value(requests.DURATION) == COMPLETED
    assert told.value(requests.PROMPT, "_sum", **{"class": "batch"}) == BATCH * INPUT_TOKENS
    assert told.value(requests.OUTPUT, "_sum", **{"class": "batch"}) == BATCH * OUTPUT_TOKENS
    assert told.value(requests.TOKEN_GAP, **{"class": "batch"}) == BATCH * (OUTPUT_TOKENS - 1)
    assert told.value(requests.HANDOFF_GAP) >= COMPLETED
    parts = told.value(requests.QUEUE, "_sum") + told.value(requests.PREFILL, "_sum")
    assert parts == pytest.approx(told.value(requests.TTFT, "_sum"))
    told = found["gateway"]
    assert told.value(gateway.REQUESTS, route="/v1/models", code="200") == 1
    assert told.value(gateway.REQUESTS, route="other", code="404") == 1


def test_buckets_of_latencies_name_traces(cluster):
    told = scrapes(cluster, OPENMETRICS)["router"]
    named = {one.name: one.exemplar.labels for one in told.samples if one.exemplar}
    for metric in (requests.TTFT, requests.ITL, requests.QUEUE, requests.DURATION):
        assert len(named[f"{metric.name}_bucket"]["trace_id"]) == 32


async def test_processes_answer_while_they_are_busy(cluster):
    at = addresses(cluster)
    async with AsyncClient(cluster.address) as client:
        wanted = [generate(client, 200 + salt, max_tokens=150) for salt in range(6)]
        working = asyncio.gather(*wanted)
        running = 0
        while not working.done():
            began = time.monotonic()
            found = {name: await asyncio.to_thread(scrape, where) for name, where in at.items()}
            assert time.monotonic() - began < 5.0
            assert all(told.value(SCRAPE_ERRORS) == 0 for told in found.values())
            running = max(running, found["decode-0"].value(worker.RUNNING))
            assert found["router"].value(router.RUNNING) <= 6
        await working
    assert running > 0
    cluster.assert_clean()
