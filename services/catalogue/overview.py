"""The dashboard that one looks at first."""

from services.catalogue.grafana import (
    Dashboard,
    Line,
    Panel,
    Row,
    highest,
    mean,
    quantile,
    quantiles,
    rate,
    ratio,
    total,
)
from services.catalogue.worker_rows import (
    memory_panel,
)
from services.common.telemetry import process_metrics
from services.common.telemetry.metrics import SCRAPE_ERRORS
from services.gateway import metrics as gateway
from services.router import metrics as router
from services.router import request_metrics as requests

_LATENCIES = Row(
    "First token and stream, against their targets",
    [
        Panel(
            "Time to first token",
            "As clients see it, from the arrival, beside the target of requests that give none. "
            "Above it, look at queue and prefill.",
            "s",
            [
                *quantiles(requests.TTFT, "class"),
                Line(highest(requests.TTFT_TARGET, "class"), "{{class}} target"),
            ],
        ),
        Panel(
            "Inter-token latency",
            "Mean of each request. Above the target, look at batch sizes, contexts and handoffs.",
            "s",
            [
                *quantiles(requests.ITL, "class"),
                Line(highest(requests.ITL_TARGET, "class"), "{{class}} target"),
            ],
        ),
        Panel(
            "Requests within their targets",
            "Part of the completed requests that held each target. The alert rules burn on this.",
            "percentunit",
            [
                Line(
                    ratio(rate(requests.TTFT_JUDGED, held="yes"), rate(requests.TTFT_JUDGED)),
                    "first token",
                ),
                Line(
                    ratio(rate(requests.ITL_JUDGED, held="yes"), rate(requests.ITL_JUDGED)),
                    "inter-token",
                ),
            ],
            most=1.0,
        ),
    ],
)
_FLOW = Row(
    "What comes and what goes",
    [
        Panel(
            "Goodput",
            "Requests a second that completed within both targets, beside all that completed.",
            "reqps",
            [
                Line(rate(requests.GOOD_REQUESTS), "within both targets"),
                Line(rate(router.REQUESTS, outcome="completed"), "completed"),
            ],
        ),
        Panel(
            "Output tokens",
            "Tokens a second, and those of requests within both targets.",
            "cps",
            [
                Line(rate(requests.OUTPUT, suffix="_sum"), "all"),
                Line(rate(requests.GOOD_TOKENS), "within both targets"),
            ],
        ),
        Panel(
            "Ends",
            "Requests a second by how they ended and, where they failed, why.",
            "reqps",
            [Line(rate(router.REQUESTS, "outcome", "reason"), "{{outcome}} {{reason}}")],
            stacked=True,
        ),
        Panel(
            "In progress",
            "Requests in progress, and those of them that wait for a turn.",
            "short",
            [Line(total(router.RUNNING), "running"), Line(total(router.WAITING), "waiting")],
        ),
        Panel(
            "Where the first token's time goes",
            "Means: with the prefill leg, the queue adds up to the time to first token.",
            "s",
            [
                Line(mean(requests.QUEUE), "queue"),
                Line(mean(requests.PREFILL), "prefill leg"),
                Line(mean(requests.HANDOFF_GAP), "handoff gap (first to second token)"),
            ],
            stacked=True,
        ),
        Panel(
            "HTTP answers",
            "The gateway's answers a second by status.",
            "reqps",
            [Line(rate(gateway.REQUESTS, "code"), "{{code}}")],
            stacked=True,
        ),
    ],
)
_HEALTH = Row(
    "Health",
    [
        Panel(
            "Event loop lag",
            "How late each process's event loop wakes up. Above 0.1 s streams stutter.",
            "s",
            [
                Line(
                    quantile(0.99, process_metrics.LAG, "service", "process"),
                    "{{service}} {{process}} p99",
                )
            ],
        ),
        memory_panel(),
        Panel(
            "Trouble",
            "Redis away, a role without workers, parts of scrapes that were left out.",
            "short",
            [
                Line(f"1 - {highest(router.REDIS, 'process')}", "Redis away ({{process}})"),
                Line(highest(router.DEGRADED), "degraded"),
                Line(rate(SCRAPE_ERRORS, "service"), "scrape errors a second ({{service}})"),
            ],
        ),
    ],
)

OVERVIEW = Dashboard(
    "overview",
    "Overview",
    "Whether clients get what they were promised, and where to look next if they don't.",
    [_LATENCIES, _FLOW, _HEALTH],
)
