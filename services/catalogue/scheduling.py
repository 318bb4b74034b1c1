"""The dashboards of decisions: the scheduler's, and the planner's."""

from services.catalogue.grafana import (
    Dashboard,
    Line,
    Panel,
    Row,
    highest,
    quantiles,
    rate,
    total,
)
from services.catalogue.worker_rows import (
    busy_share,
)
from services.planner import metrics as planner
from services.router import metrics as router
from services.router import request_metrics as requests
from services.worker import metrics as worker

SCHEDULER = Dashboard(
    "scheduler",
    "Scheduler",
    "The queue, claims and turns, and how good the predictions behind decisions are.",
    [
        Row(
            "The queue",
            [
                Panel(
                    "Waiting for a turn",
                    "Requests of all routers in the fleet's queue, and turns given.",
                    "short",
                    [
                        Line(highest(router.QUEUE_WAITING), "waiting"),
                        Line(highest(router.TURNS), "turns not used yet"),
                        Line(highest(router.CLAIMS), "claims not told of yet"),
                    ],
                ),
                Panel(
                    "Queued work",
                    "Prompt work of all that wait. Divided by the prefill workers it is the wait.",
                    "s",
                    [Line(highest(router.QUEUE_WORK), "queued")],
                ),
                Panel(
                    "Time in the queue",
                    "From the arrival to the turn.",
                    "s",
                    quantiles(requests.QUEUE, "class"),
                ),
            ],
        ),
        Row(
            "Predictions",
            [
                Panel(
                    "First token: actual by predicted",
                    "1: as predicted. Above it requests are let in that miss their targets; below "
                    "it requests are refused that would have held them.",
                    "short",
                    quantiles(requests.TTFT_RATIO),
                ),
                Panel(
                    "Inter-token latency: actual by predicted",
                    "1: as predicted. Above it batches are larger than their targets allow.",
                    "short",
                    quantiles(requests.ITL_RATIO),
                ),
                Panel(
                    "Error of cost models",
                    "Mean relative error of the step times that each worker predicts.",
                    "percentunit",
                    [Line(highest(router.COST_ERROR, "worker"), "{{worker}}")],
                ),
                Panel(
                    "Refused and limited",
                    "Requests a second whose targets could not be held, or whose tenant has had "
                    "its share.",
                    "reqps",
                    [
                        Line(rate(router.REQUESTS, "reason", outcome="refused"), "{{reason}}"),
                        Line(rate(router.LIMITED), "tenant limits"),
                    ],
                    stacked=True,
                ),
                Panel(
                    "Held",
                    "Claims and leases that routers keep alive.",
                    "short",
                    [Line(total(router.HELD), "claims"), Line(total(router.LEASES), "leases")],
                ),
                Panel(
                    "Calls tried again",
                    "Calls to workers that were made again after one failed or refused.",
                    "cps",
                    [Line(rate(router.RETRIED, "process"), "{{process}}")],
                ),
            ],
        ),
    ],
)

PLANNER = Dashboard(
    "planner",
    "Planner",
    "How many workers each role has, is to have and needs, what that goes by, and whether the "
    "planner can see and act.",
    [
        Row(
            "Replicas and decisions",
            [
                Panel(
                    "Replicas",
                    "Workers of each role: asked for, serving, and wanted by the last decision.",
                    "short",
                    [Line(highest(planner.REPLICAS, "role", "state"), "{{role}} {{state}}")],
                ),
                Panel(
                    "Needed",
                    "Workers that the load needs, before bounds, budget and cool-downs.",
                    "short",
                    [Line(highest(planner.NEEDED, "role"), "{{role}}")],
                ),
                Panel(
                    "Decisions",
                    "Changes an hour by role, direction and cause. Logs and events say why.",
                    "short",
                    [
                        Line(
                            f"3600 * {rate(planner.DECISIONS, 'role', 'direction', 'cause')}",
                            "{{role}} {{direction}} ({{cause}})",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    "Able to act",
                    "One planner leads. What is unsound grows while it can't see all that it goes "
                    "by, or can't do what it decided.",
                    "s",
                    [
                        Line(highest(planner.UNSOUND, "process"), "unsound ({{process}})"),
                        Line(total(planner.LEADER), "leaders"),
                        Line(highest(planner.DRY_RUN), "dry run"),
                    ],
                ),
                Panel(
                    "Failures",
                    "What went wrong, an hour: conflict, denied, unavailable, redis, bug.",
                    "short",
                    [Line(f"3600 * {rate(planner.FAILURES_TOLD, 'kind')}", "{{kind}}")],
                    stacked=True,
                ),
                Panel(
                    "Time of a decision",
                    "A forecast takes the longest.",
                    "s",
                    quantiles(planner.DECIDE),
                ),
            ],
        ),
        Row(
            "What it goes by",
            [
                Panel(
                    "Arrivals, measured and foreseen",
                    "Requests a second. Foreseen: for the end of the time that is planned for.",
                    "reqps",
                    [Line(highest(planner.ARRIVALS, "which"), "{{which}}")],
                ),
                Panel(
                    "Workers in rotation",
                    "Workers that routers see, by role and state.",
                    "short",
                    [Line(highest(router.WORKERS, "role", "state"), "{{role}} {{state}}")],
                    stacked=True,
                ),
                Panel(
                    "Arrivals",
                    "Valid requests a second, by class.",
                    "reqps",
                    [Line(rate(requests.ACCEPTED, "class"), "{{class}}")],
                    stacked=True,
                ),
                Panel(
                    "Offered tokens",
                    "Prompt and output tokens a second that were asked for and served.",
                    "cps",
                    [
                        Line(rate(requests.PROMPT, suffix="_sum"), "prompt"),
                        Line(rate(requests.OUTPUT, suffix="_sum"), "output"),
                    ],
                ),
                busy_share(),
                Panel(
                    "Sequences by their limit",
                    "What decode workers run, by what the tightest inter-token target allows.",
                    "percentunit",
                    [
                        Line(
                            f"{total(worker.HELD, 'process', service='decode')} / "
                            f"{total(worker.LIMIT, 'process', service='decode')}",
                            "{{process}}",
                        )
                    ],
                ),
                Panel(
                    "Error of cost models",
                    "Mean relative error of predicted step times: what plans are worth.",
                    "percentunit",
                    [Line(highest(worker.COST_ERROR, "process"), "{{process}}")],
                ),
            ],
        ),
    ],
)
