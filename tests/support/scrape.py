"""Metrics as a scraper sees them."""

import asyncio
import urllib.request
from collections.abc import Iterable

from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from services.common.telemetry.metric import Kind, Metric, Source
from services.common.telemetry.metrics import Metrics

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """What one process told."""

    def __init__(self, text: str, media_type: str) -> None:
        parse = parse_openmetrics if "openmetrics" in media_type else parse_text
        self.families = {family.name: family for family in parse(text)}

    @property
    def series_names(self) -> set[str]:
        """Names that queries may have, also of what has no value yet."""
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
        return {
            name + ending
            for name, family in self.families.items()
            for ending in endings.get(family.type, [""])
        }

    @property
    def samples(self):
        return [one for family in self.families.values() for one in family.samples]

    def value(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        """Sum of a metric's samples that have these labels; of a histogram, its count."""
        if not suffix and metric.kind is Kind.HISTOGRAM:
            suffix = "_count"
        name = metric.name + suffix
        assert name in self.series_names, f"{name} is not told"
        return sum(
            one.value
            for one in self.samples
            if one.name == name and labels.items() <= one.labels.items()
        )


def scrape(address: str, accept: str = "", timeout: float = 10.0) -> Scrape:
    """Asks a process."""
    asked = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(asked, timeout=timeout) as answer:
        return Scrape(answer.read().decode(), answer.headers["Content-Type"])


async def read(sources: Source | Iterable[Source], accept: str = OPENMETRICS) -> Scrape:
    """Reads sources of this process."""
    metrics = Metrics("test", "test-1")
    for source in [sources] if isinstance(sources, Source) else sources:
        metrics.add(source)
    text, media_type = await asyncio.to_thread(metrics.text, accept)
    return Scrape(text.decode(), media_type)
