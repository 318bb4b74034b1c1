"""A diagnosis in a few lines for people: the verdict, where the time goes, the workers."""

from collections.abc import Iterator

from baton.doctor.diagnosis import Diagnosis, WorkerRates
from baton.doctor.finding import Severity, duration, percent

WIDTH = 60
"""Of the bar."""
_SIGNS = {
    "queue": "q", "wait": "w", "compute": "C", "publish": "p", "calls": "?", "handoff": "h",
    "decode": "D",
}  # fmt: skip
_MARKS = {Severity.PROBLEM: "problem", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(diagnosis: Diagnosis) -> str:
    """Plain text, without a line break at its end."""
    return "\n".join(_lines(diagnosis))


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"{diagnosis.verdict.value}: {diagnosis.summary}"
    for number, finding in enumerate(diagnosis.findings):
        if number or finding.title != diagnosis.summary:
            yield ""
            yield f"{_MARKS[finding.severity]}: {finding.title} [{finding.code}]"
        yield from (f"    {line}" for line in finding.evidence)
        yield from (f"  > {line}" for line in finding.advice)
    total_s = sum(value for _, value in diagnosis.parts)
    if total_s > 0:
        yield ""
        yield from _times(diagnosis, total_s)
    if any(worker.phases for worker in diagnosis.workers):
        yield ""
        yield f"workers, over {duration(diagnosis.seconds)}:"
        for worker in diagnosis.workers:
            yield from _worker(worker)


def _times(diagnosis: Diagnosis, total_s: float) -> Iterator[str]:
    yield f"a mean request of {diagnosis.requests} took {duration(total_s)}:"
    yield f"  [{bar(diagnosis.parts, WIDTH)}]"
    shown = [(name, value) for name, value in diagnosis.parts if value > 0]
    yield "  " + ", ".join(
        f"{_SIGNS[name]} {name} {duration(value)} ({percent(value / total_s)})"
        for name, value in shown
    )


def bar(parts: tuple[tuple[str, float], ...], width: int) -> str:
    """A letter for each share of the whole, `width` in all."""
    total = sum(value for _, value in parts)
    drawn, reached = "", 0.0
    for name, value in parts:
        reached += value
        drawn += _SIGNS[name] * (round(width * reached / total) - len(drawn))
    return drawn


def _worker(worker: WorkerRates) -> Iterator[str]:
    if not worker.phases:
        yield f"  {worker.worker_id} ({worker.role}): no step"
    for one in worker.phases:
        batch = f", {one.batch:.1f} sequences" if one.batch else ""
        yield (
            f"  {worker.worker_id} {one.phase}: busy {percent(one.busy)}, {one.steps} steps of "
            f"{duration(one.step_s)}{batch}; {one.words}"
        )
