"""Which process serves which metrics."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.common.telemetry import process_metrics
from services.common.telemetry.metric import Metric
from services.common.telemetry.metrics import SCRAPE_ERRORS
from services.gateway import metrics as gateway
from services.planner import metrics as planner
from services.router import metrics as router
from services.router import request_metrics
from services.transfer import metrics as transfer
from services.worker import metrics as worker


@dataclass(frozen=True, slots=True)
class Room:
    """Processes of one kind, and what they tell."""

    title: str
    about: str
    metrics: Sequence[Metric]


ROOMS = (
    Room(
        "Every process",
        "Served by all of them.",
        (*process_metrics.METRICS, SCRAPE_ERRORS),
    ),
    Room(
        "Router: requests",
        "Told when a request ends. Its class is `interactive` or `batch`. Latencies are those of "
        "requests that had a token.",
        request_metrics.METRICS,
    ),
    Room(
        "Router: itself, the queue and the fleet",
        "Metrics of the queue (`baton_router_queue_*`), of Redis and of workers are the fleet's, "
        "as this router sees it: take the maximum over routers, not the sum.",
        router.METRICS,
    ),
    Room(
        "Prefill and decode workers",
        "The label `service` is the role: `prefill` or `decode`.",
        worker.METRICS,
    ),
    Room("Transfer service", "One for each host.", transfer.METRICS),
    Room("Gateway", "Served at its own address, under `/metrics`.", gateway.METRICS),
    Room(
        "Planner",
        "Of several planners one leads; what is only told by that one is missing at the others.",
        planner.METRICS,
    ),
)


def all_metrics() -> list[Metric]:
    """Every metric of every process."""
    return [metric for room in ROOMS for metric in room.metrics]
