"""What a worker's metrics tell of its device: work done and peaks; and of the handoff canary.

Achieved rates are `rate(baton_worker_flops_total) / rate(baton_worker_busy_seconds_total)`.
"""

from services.common.telemetry.metric import Reading, Source, counter, gauge, histogram
from services.common.telemetry.tally import Tally
from services.worker.host import Host
from services.worker.work import Phase, PhaseWork

STEPS = counter("baton_worker_steps_total", "Steps run, by phase.", "phase")
BUSY = counter("baton_worker_busy_seconds_total", "Time that steps took, by phase.", "phase")
FLOPS = counter(
    "baton_worker_flops_total",
    "Floating-point operations of steps, as the model's shapes make them, by phase.",
    "phase",
)
BYTES = counter(
    "baton_worker_memory_bytes_total",
    "Bytes of weights and KV that steps had to read or write at least, by phase.",
    "phase",
)
PEAK_FLOPS = gauge(
    "baton_worker_peak_flops_per_second",
    "Floating-point operations a second of a large matrix product, as measured at the start.",
    stands=True,
)
PEAK_BYTES = gauge(
    "baton_worker_peak_memory_bytes_per_second",
    "Bytes a second of a large copy, read and written bytes counted, as measured at the start.",
    stands=True,
)
CANARIES = histogram(
    "baton_worker_canary_drift_nats",
    "Largest difference of a log probability between a handoff and the same tokens computed "
    "again, of a sampled few handoffs.",
)
CANARY_ALARMS = counter(
    "baton_worker_canary_alarms_total",
    "Of those handoffs, the ones that drifted further than the rounding of the worker's number "
    "format explains.",
)
METRICS = (STEPS, BUSY, FLOPS, BYTES, PEAK_FLOPS, PEAK_BYTES, CANARIES, CANARY_ALARMS)

_DRIFT_BUCKETS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class DeviceMetrics:
    """Reads what one host's device did."""

    def __init__(self, host: Host) -> None:
        """Takes the place of what the canary tells its drift."""
        self._host = host
        self._drift = Tally(_DRIFT_BUCKETS)
        host.canary.on_drift = self._drift.observe

    def source(self) -> Source:
        """Reads the metrics of this module."""
        return Source("device", self._read, METRICS)

    async def _read(self) -> list[Reading]:
        done = dict.fromkeys(Phase, PhaseWork()) | self._host.work.phases
        readings = [CANARIES.at(self._drift), CANARY_ALARMS.at(self._host.canary.alarms)]
        for phase, work in done.items():
            readings += [
                STEPS.at(work.steps, phase.value),
                BUSY.at(work.busy_s, phase.value),
                FLOPS.at(work.flops, phase.value),
                BYTES.at(work.bytes, phase.value),
            ]
        if (peaks := self._host.peaks) is not None:
            readings += [
                PEAK_FLOPS.at(peaks.flops_per_second),
                PEAK_BYTES.at(peaks.bytes_per_second),
            ]
        return readings
