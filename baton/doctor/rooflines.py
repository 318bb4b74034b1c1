"""What workers reach of what their devices can do, phase by phase."""

from dataclasses import dataclass
from enum import Enum

from baton.doctor.finding import percent, rate
from baton.doctor.picture import Worker

REACHED = 0.25
"""Part of a measured peak from which on it is what holds a phase up. Good kernels on real shapes
reach two thirds and more; where not even a quarter is, the time goes elsewhere: into starting
kernels, into Python, into products too small to fill the device."""


class Bound(Enum):
    """What holds a phase up."""

    COMPUTE = "compute"
    BANDWIDTH = "bandwidth"
    OVERHEAD = "overhead"
    UNKNOWN = "unknown"
    """The device was not measured."""


@dataclass(frozen=True, slots=True)
class PhaseRates:
    """One phase of one worker."""

    phase: str
    steps: int
    busy: float
    """Part of the time that was spent in it."""
    step_s: float
    batch: float
    flops_per_second: float
    bytes_per_second: float
    compute: float
    """Part of the measured peak; 0 where there is none."""
    bandwidth: float
    intensity: float
    """Floating-point operations for each byte."""
    ridge: float
    """The intensity from which on the device's compute is the bound."""
    bound: Bound

    @property
    def words(self) -> str:
        """In one line."""
        of_peaks = ""
        if self.bound is not Bound.UNKNOWN:
            of_peaks = f" ({percent(self.compute)} and {percent(self.bandwidth)} of the peaks)"
        return (
            f"{rate(self.flops_per_second, 'FLOP')}, {rate(self.bytes_per_second, 'B')}{of_peaks}: "
            f"{self.bound.value}-bound"
        )


def phase_rates(worker: Worker, seconds: float) -> list[PhaseRates]:
    """The phases that had steps in the `seconds` of a snapshot."""
    found = []
    for phase, steps in worker.phases.items():
        busy_s = max(1e-9, steps.busy_s)
        flops, moved = steps.flops / busy_s, steps.bytes / busy_s
        compute = flops / worker.peak_flops if worker.peak_flops else 0.0
        bandwidth = moved / worker.peak_bytes if worker.peak_bytes else 0.0
        intensity = steps.flops / steps.bytes if steps.bytes else 0.0
        ridge = worker.peak_flops / worker.peak_bytes if worker.peak_bytes else 0.0
        found.append(
            PhaseRates(
                phase=phase,
                steps=steps.steps,
                busy=steps.busy_s / seconds,
                step_s=steps.step_s,
                batch=steps.batch,
                flops_per_second=flops,
                bytes_per_second=moved,
                compute=compute,
                bandwidth=bandwidth,
                intensity=intensity,
                ridge=ridge,
                bound=_bound(compute, bandwidth, intensity, ridge),
            )
        )
    return found


def _bound(compute: float, bandwidth: float, intensity: float, ridge: float) -> Bound:
    if not ridge:
        return Bound.UNKNOWN
    if max(compute, bandwidth) < REACHED:
        return Bound.OVERHEAD
    return Bound.COMPUTE if intensity >= ridge else Bound.BANDWIDTH
