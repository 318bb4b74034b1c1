"""What a worker's steps have computed, by phase, to be held against what its device can do.

Steps are told on the engine's thread, in O(1), and read on any other. Knows shapes and seconds;
no engine, no wire.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from engine.roofline import Work
from engine.steps import StepReport, StepShape

WorkOf = Callable[[StepShape], Work]
"""Tells the least work of a step."""


class Phase(Enum):
    """What a step computes."""

    PREFILL = "prefill"
    """Prompts alone."""
    DECODE = "decode"
    """The next token of each sequence."""
    MIXED = "mixed"

    @classmethod
    def of(cls, shape: StepShape) -> "Phase":
        """The phase of a step."""
        if not shape.sequences:
            return cls.PREFILL
        return cls.MIXED if shape.prompt_tokens else cls.DECODE


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """The steps of one phase."""

    steps: int = 0
    busy_s: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    prompt_tokens: int = 0
    sequences: int = 0
    """That decoded, over all steps."""
    context_tokens: int = 0
    """Of those sequences, over all steps."""


class WorkMeter:
    """Adds steps up. One thread observes; any may read."""

    def __init__(self, work_of: WorkOf) -> None:
        self._work_of = work_of
        self._phases = dict.fromkeys(Phase, PhaseWork())  # values are replaced, never changed

    def observe(self, report: StepReport) -> None:
        """Takes a step into account."""
        shape = report.shape
        work, phase = self._work_of(shape), Phase.of(shape)
        before = self._phases[phase]
        self._phases[phase] = PhaseWork(
            steps=before.steps + 1,
            busy_s=before.busy_s + report.seconds,
            flops=before.flops + work.flops,
            bytes=before.bytes + work.bytes,
            prompt_tokens=before.prompt_tokens + shape.prompt_tokens,
            sequences=before.sequences + shape.sequences,
            context_tokens=before.context_tokens + shape.context_tokens,
        )

    @property
    def phases(self) -> dict[Phase, PhaseWork]:
        """The phases that had a step."""
        return {phase: work for phase, work in self._phases.items() if work.steps}
