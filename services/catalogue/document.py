"""`docs/metrics.md`, from the declarations."""

from services.catalogue.rooms import ROOMS, Room
from services.common.telemetry.metric import Kind, Metric
from services.common.telemetry.metrics import COMMON_LABELS, SCRAPE_S

_HEAD = f"""# Metrics

Generated from the code by `make docs`; don't edit.

Every process serves its metrics in Prometheus' text format, or as OpenMetrics with exemplars to
those that ask for it, at `--metrics-address` (or `BATON_METRICS_ADDRESS`); the gateway also at
its own address. `baton up` gives each process a free port; `baton status --json` tells them as
`metrics_address`. Dashboards and alert rules are in [`dashboards/`](../dashboards/README.md).

All have the labels `{COMMON_LABELS[0]}` (kind of process) and `{COMMON_LABELS[1]}` (its name)
beside those in the table. None has a label that clients can choose. Counters run from the
process's start. Gauges are read at the moment of the scrape, and are 0 in an idle process unless
they are marked *stands*. A scrape takes {SCRAPE_S:g} s at most: what can't be read by then is
left out, and counted in `baton_scrape_errors_total`.

Exemplars have the `trace_id` of the last request that fell into a bucket.
"""


def document() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *map(_room, ROOMS)])


def _room(room: Room) -> str:
    rows = "\n".join(map(_row, room.metrics))
    head = "| metric | type | labels | unit | meaning |\n|---|---|---|---|---|"
    return f"## {room.title}\n\n{room.about}\n\n{head}\n{rows}\n"


def _row(metric: Metric) -> str:
    kind = metric.kind.value
    if metric.kind is Kind.GAUGE and metric.stands:
        kind += ", *stands*"
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {kind} | {labels} | {metric.unit} | {metric.help} |"
