"""Steps add up by phase."""

from engine.roofline import Work
from engine.steps import StepReport, StepShape
from services.worker.work import Phase, PhaseWork, WorkMeter

PROMPT = StepShape(16, 136, 0, 0)
DECODE = StepShape(0, 0, 3, 90)
BOTH = StepShape(8, 36, 2, 50)


def test_each_phase_has_its_own_sum():
    meter = WorkMeter(lambda shape: Work(10.0 * shape.prompt_tokens, 1.0 + shape.sequences))
    assert meter.phases == {}
    for shape, seconds in ((PROMPT, 0.5), (DECODE, 0.25), (DECODE, 0.25), (BOTH, 1.0)):
        meter.observe(StepReport(shape, seconds))
    assert meter.phases == {
        Phase.PREFILL: PhaseWork(1, 0.5, 160.0, 1.0, prompt_tokens=16),
        Phase.DECODE: PhaseWork(2, 0.5, 0.0, 8.0, sequences=6, context_tokens=180),
        Phase.MIXED: PhaseWork(1, 1.0, 80.0, 3.0, 8, 2, 50),
    }


def test_what_was_read_does_not_change():
    meter = WorkMeter(lambda _: Work(1.0, 1.0))
    meter.observe(StepReport(DECODE, 1.0))
    read = meter.phases
    meter.observe(StepReport(DECODE, 1.0))
    assert read[Phase.DECODE].steps == 1
