"""Rows that the dashboards of prefill and of decode have in common."""

from services.catalogue.grafana import (
    Line,
    Panel,
    Row,
    mean,
    quantile,
    quantiles,
    rate,
    ratio,
    total,
)
from services.common.telemetry import process_metrics
from services.common.telemetry.metric import Metric
from services.worker import device_metrics as device
from services.worker import metrics as worker


def steps_row(service: str) -> Row:
    """Steps of the workers of a role."""
    return Row(
        "Steps",
        [
            Panel(
                "Step time",
                "By phase: prompts alone, the next token of each sequence, or both.",
                "s",
                quantiles(worker.STEP, "phase", service=service),
            ),
            Panel(
                "Batch",
                "Sequences of a step.",
                "short",
                [
                    Line(mean(worker.BATCH, "process", service=service), "{{process}} mean"),
                    Line(
                        quantile(0.95, worker.BATCH, "process", service=service), "{{process}} p95"
                    ),
                ],
            ),
            Panel(
                "Steps",
                "Steps a second by phase.",
                "cps",
                [Line(rate(device.STEPS, "phase", service=service), "{{phase}}")],
                stacked=True,
            ),
        ],
    )


def load_row(service: str) -> Row:
    """What the workers of a role are at."""
    return Row(
        "Load",
        [
            Panel(
                "Sequences",
                "Running, and waiting for their KV or a place in the batch.",
                "short",
                [
                    Line(total(worker.RUNNING, "process", service=service), "{{process}} running"),
                    Line(total(worker.WAITING, "process", service=service), "{{process}} waiting"),
                ],
            ),
            Panel(
                "Context",
                "Tokens in the contexts of what decodes: each step reads their KV.",
                "short",
                [Line(total(worker.CONTEXT, "process", service=service), "{{process}}")],
            ),
            Panel(
                "Sequence limit",
                "Sequences that a worker takes so that its tightest inter-token target holds.",
                "short",
                [Line(total(worker.LIMIT, "process", service=service), "{{process}}")],
            ),
        ],
    )


def device_row(service: str) -> Row:
    """How well the devices of a role are used."""
    return Row(
        "Device",
        [
            Panel(
                "Compute",
                "Achieved floating-point operations a second while busy, by what the device was "
                "measured to do. Near 1: compute-bound.",
                "percentunit",
                [Line(_of_peak(device.FLOPS, device.PEAK_FLOPS, service), "{{process}}")],
                most=1.0,
            ),
            Panel(
                "Memory bandwidth",
                "Bytes a second that steps had to move while busy, by what the device was "
                "measured to do. Near 1: bandwidth-bound.",
                "percentunit",
                [Line(_of_peak(device.BYTES, device.PEAK_BYTES, service), "{{process}}")],
                most=1.0,
            ),
            busy_share(service),
        ],
    )


def _of_peak(done: Metric, peak: Metric, service: str) -> str:
    by = {"service": service}
    achieved = ratio(rate(done, "process", **by), rate(device.BUSY, "process", **by))
    return f"{achieved} / {total(peak, 'process', **by)}"


def busy_share(service: str = "prefill|decode") -> Panel:
    """How much of the time workers step."""
    return Panel(
        "Busy",
        "Part of the time in which a worker's engine ran a step, by phase.",
        "percentunit",
        [Line(rate(device.BUSY, "process", "phase", service=service), "{{process}} {{phase}}")],
        stacked=True,
        most=1.0,
    )


def kv_row() -> Row:
    """Blocks of the engines' pools."""
    return Row(
        "Blocks",
        [
            Panel(
                "Blocks in use",
                "Held by sequences, exports or imports, by the pool's size. At 1 sequences are "
                "preempted.",
                "percentunit",
                [
                    Line(
                        f"{total(worker.USED_BLOCKS, 'process', 'group')} / "
                        f"{total(worker.TOTAL_BLOCKS, 'process', 'group')}",
                        "{{process}} {{group}}",
                    )
                ],
                most=1.0,
            ),
            Panel(
                "Blocks by state",
                "Used, cached (free to take, and keeping named KV), and free.",
                "short",
                [
                    Line(total(worker.USED_BLOCKS, "service"), "{{service}} used"),
                    Line(total(worker.CACHED_BLOCKS, "service"), "{{service}} cached"),
                    Line(total(worker.FREE_BLOCKS, "service"), "{{service}} free"),
                ],
                stacked=True,
            ),
            Panel(
                "Preempted",
                "Sequences a second that left for lack of blocks, or since their worker drains.",
                "cps",
                [
                    Line(rate(worker.PREEMPTED, "process"), "{{process}} preempted"),
                    Line(rate(worker.DRAINED, "process"), "{{process}} drained"),
                ],
            ),
        ],
    )


def memory_panel() -> Panel:
    """Memory of every process."""
    return Panel(
        "Resident memory",
        "Of each process, shared memory included.",
        "bytes",
        [Line(total(process_metrics.RESIDENT, "service", "process"), "{{service}} {{process}}")],
    )
