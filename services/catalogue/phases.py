"""The dashboards of the two phases: prefill and decode."""

from services.catalogue.grafana import (
    Dashboard,
    Line,
    Panel,
    Row,
    mean,
    quantiles,
    rate,
    total,
)
from services.catalogue.worker_rows import (
    device_row,
    load_row,
    steps_row,
)
from services.router import metrics as router
from services.router import request_metrics as requests
from services.worker import metrics as worker

PREFILL = Dashboard(
    "prefill",
    "Prefill",
    "Prompts: how long they wait and take, and how well the device is used for them.",
    [
        Row(
            "Prompts",
            [
                Panel(
                    "Prefill leg",
                    "From a request's turn to its first token.",
                    "s",
                    quantiles(requests.PREFILL, "class"),
                ),
                Panel(
                    "Parts of the leg",
                    "Means, as prefill workers measured them: waiting for the engine, computing, "
                    "publishing the KV.",
                    "s",
                    [Line(mean(requests.PREFILL_PART, "part"), "{{part}}")],
                    stacked=True,
                ),
                Panel(
                    "Prompt sizes",
                    "Tokens of prompts.",
                    "short",
                    quantiles(requests.PROMPT),
                ),
                Panel(
                    "Prompt tokens",
                    "Tokens a second that were computed and that caches saved, by role.",
                    "cps",
                    [
                        Line(rate(worker.PREFILLED, "service"), "computed ({{service}})"),
                        Line(rate(worker.CACHED, "service"), "cached ({{service}})"),
                    ],
                    stacked=True,
                ),
                Panel(
                    "Prompts beside decode",
                    "Requests a second whose prompt a decode worker computed since that was "
                    "cheaper, or since there was no prefill worker.",
                    "reqps",
                    [
                        Line(rate(router.LOCAL), "cheaper"),
                        Line(rate(router.DEGRADED_REQUESTS), "degraded"),
                    ],
                ),
                Panel(
                    "Prompt backlog",
                    "Predicted time to compute what each worker has taken. Saturated workers keep "
                    "as much as they want to have ahead, and the queue grows.",
                    "s",
                    [Line(total(worker.BACKLOG, "process", service="prefill"), "{{process}}")],
                ),
            ],
        ),
        steps_row("prefill"),
        device_row("prefill"),
    ],
)

DECODE = Dashboard(
    "decode",
    "Decode",
    "Streams: how steadily tokens come, what batches they share, what interrupts them.",
    [
        Row(
            "Streams",
            [
                Panel(
                    "Gaps between tokens",
                    "Each gap, not the mean of a request: stalls show here first.",
                    "s",
                    quantiles(requests.TOKEN_GAP, "class"),
                ),
                Panel(
                    "Handoff gap",
                    "From the first to the second token, where a handoff lay between them. It "
                    "counts against the inter-token target.",
                    "s",
                    quantiles(requests.HANDOFF_GAP, "class"),
                ),
                Panel(
                    "Time per output token",
                    "All of a request's time, by its output tokens.",
                    "s",
                    quantiles(requests.PER_OUTPUT_TOKEN, "class"),
                ),
                Panel(
                    "Sampled tokens",
                    "Tokens a second of each decode worker.",
                    "cps",
                    [Line(rate(worker.SAMPLED, "process", service="decode"), "{{process}}")],
                    stacked=True,
                ),
                Panel(
                    "Interruptions",
                    "Sequences a second that moved with their KV, went on after a failure, or "
                    "left a worker for lack of blocks.",
                    "cps",
                    [
                        Line(rate(router.MIGRATED), "moved"),
                        Line(rate(router.RESUMED), "resumed"),
                        Line(rate(router.RECOMPUTED), "recomputed"),
                        Line(rate(worker.PREEMPTED), "preempted"),
                        Line(rate(router.RETRIED), "calls tried again"),
                    ],
                ),
                Panel(
                    "Output sizes",
                    "Tokens of outputs.",
                    "short",
                    quantiles(requests.OUTPUT),
                ),
            ],
        ),
        load_row("decode"),
        steps_row("decode"),
        device_row("decode"),
    ],
)
