"""The dashboards of decisions: the scheduler's, and those of a planner of replicas."""

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
    "What a planner of replicas goes by. Baton has no planner process yet: this shows what there "
    "is of it, the replicas of each role, what arrives, and the cost model.",
    [
        Row(
            "Replicas and work",
            [
                Panel(
                    "Replicas",
                    "Workers in rotation by role and state.",
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
        )
    ],
)
