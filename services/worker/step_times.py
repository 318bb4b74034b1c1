"""How long steps take, by what they compute. Told on the engine's thread, in a microsecond."""

from engine.steps import StepReport
from services.common.telemetry.tally import SECONDS_BUCKETS, Tallies
from services.worker.work import Phase


class StepTimes:
    """A tally of steps' seconds for each phase."""

    def __init__(self) -> None:
        self.by_phase = Tallies(SECONDS_BUCKETS)
        self._tallies = {phase: self.by_phase[(phase.value,)] for phase in Phase}

    def observe(self, report: StepReport) -> None:
        """Counts a step."""
        self._tallies[Phase.of(report.shape)].observe(report.seconds)
