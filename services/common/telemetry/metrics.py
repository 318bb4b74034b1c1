"""The metrics of one process, served in Prometheus' formats, and its health beside them.

All values are read when somebody asks: by `Source`s, which run on the event loop. One that
fails or is late is left out and counted; the rest is told. Nothing is kept, so nothing is stale.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from services.common.telemetry.health import Health
from services.common.telemetry.metric import Kind, Metric, Reading, Source, counter
from services.common.telemetry.process_metrics import ProcessMetrics
from services.common.telemetry.scrape_server import ScrapeServer
from services.common.telemetry.tally import Snapshot, Tally

log = logging.getLogger(__name__)

SCRAPE_S = 2.0
"""Longest time that values are waited for."""
COMMON_LABELS = ("service", "process")
"""Of every metric."""

SCRAPE_ERRORS = counter(
    "baton_scrape_errors_total",
    "Times that a part of the metrics was left out since it could not be read in time.",
    "source",
)

_FAMILIES: dict[Kind, Any] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


@asynccontextmanager
async def measured(service: str, process: str, address: str = "") -> "AsyncIterator[Metrics]":
    """The metrics of a process, served at `address` (port 0 takes a free one; empty: nowhere)
    inside the block. Raises OSError where it can't listen."""
    metrics = Metrics(service, process)
    try:
        await metrics.start(address)
        yield metrics
    finally:
        await metrics.close()


class Metrics(Collector):
    """What one process tells. Needs a running loop; `text` belongs on other threads."""

    def __init__(self, service: str, process: str, scrape_s: float = SCRAPE_S) -> None:
        """`service` is its kind, `process` its name: both are labels of all that is told."""
        self.address = ""
        """host:port where it is served; empty: nowhere."""
        self.health = Health()
        """The process's; beats while this is started."""
        self._loop = asyncio.get_running_loop()
        self._scrape_s = scrape_s
        self._common = (service, process)
        self._process = ProcessMetrics()
        self._sources = [self._process.source()]
        self._errors: dict[str, int] = {}
        self._server: ScrapeServer | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def add(self, source: Source) -> None:
        """Tells what `source` reads, too."""
        self._sources.append(source)

    async def start(self, address: str) -> None:
        """Begins to measure, and serves at `address` (port 0 takes a free one) unless that is
        empty. Raises OSError where it can't listen."""
        self._process.start()
        self.health.start()
        if address:
            self._server = await asyncio.to_thread(
                ScrapeServer, address, self._registry, self.health
            )
            self.address = self._server.address
            log.info("metrics are served at http://%s/metrics", self.address)

    async def close(self) -> None:
        """Ends both."""
        await self._process.close()
        await self.health.close()
        if self._server is not None:
            server, self._server = self._server, None
            await asyncio.to_thread(server.close)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """What a scrape gets that accepts these media types, and the one it is."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type

    def collect(self) -> Iterator[Family]:
        """Reads all sources; within `scrape_s`."""
        deadline = time.monotonic() + self._scrape_s
        asked = [(source, self._ask(source)) for source in self._sources]
        for source, answer in asked:
            families = {one.name: _family(one) for one in source.metrics}
            for reading in self._answer(source, answer, deadline):
                _add(families[reading.metric.name], reading, self._common)
            yield from families.values()
        errors = _family(SCRAPE_ERRORS)
        for name in [source.name for source in self._sources]:
            count = self._errors.get(name, 0)
            _add(errors, SCRAPE_ERRORS.at(count, name), self._common)
        yield errors

    def _ask(self, source: Source) -> "Future[tuple[Reading, ...]] | None":
        reading = _read(source)
        try:
            return asyncio.run_coroutine_threadsafe(reading, self._loop)
        except RuntimeError:  # the loop is closed
            reading.close()
            return None

    def _answer(
        self, source: Source, answer: "Future[tuple[Reading, ...]] | None", deadline: float
    ) -> Iterable[Reading]:
        problem: BaseException | str = "the event loop has ended"
        if answer is not None:
            try:
                return answer.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                answer.cancel()
                problem = f"it took longer than {self._scrape_s:g} s"
            except Exception as error:  # noqa: BLE001 - the other sources are told all the same
                problem = error
        log.warning("metrics of %s are left out: %r", source.name, problem)
        self._errors[source.name] = self._errors.get(source.name, 0) + 1
        return ()


async def _read(source: Source) -> tuple[Reading, ...]:
    return tuple(await source.read())


def _family(metric: Metric) -> Family:
    unit = metric.unit if metric.unit in ("seconds", "bytes") else ""
    labels = (*COMMON_LABELS, *metric.labels)
    family: Family = _FAMILIES[metric.kind](metric.name, metric.help, labels=labels, unit=unit)
    return family


def _add(family: Any, reading: Reading, common: tuple[str, str]) -> None:
    labels = (*common, *reading.labels)
    if isinstance(reading.value, Tally):
        seen = reading.value.snapshot()
        family.add_metric(labels, list(_buckets(seen)), seen.total)
    else:
        family.add_metric(labels, reading.value)


def _buckets(seen: Snapshot) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
    below = 0
    bounds = (*seen.bounds, float("inf"))
    for bound, count, example in zip(bounds, seen.counts, seen.examples, strict=True):
        below += count
        name = str(floatToGoString(bound))  # type: ignore[no-untyped-call]
        if example is None:
            yield name, below
        else:
            yield (
                name,
                below,
                Exemplar({"trace_id": example.trace_id}, example.value, example.at_s),
            )
