"""The whole diagnosis: a verdict, findings in order, where the time goes, what workers reach."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from baton.doctor.finding import Finding, Severity, duration
from baton.doctor.first_token import first_token_findings
from baton.doctor.fleet import fleet_findings
from baton.doctor.picture import AS_ASKED, Picture, Request, Wanted, Worker, mean
from baton.doctor.rooflines import PhaseRates, phase_rates
from baton.doctor.snapshot import Snapshot
from baton.doctor.stream import stream_findings

PARTS = (
    ("queue", "queue_s"),
    ("wait", "waiting_s"),
    ("compute", "computing_s"),
    ("publish", "publishing_s"),
    ("calls", "calls_s"),
    ("handoff", "gap_s"),
    ("decode", "decoding_s"),
)
"""Where a request's time goes, in order, as the gateway's page calls it; and the name of each
part's value."""


class Verdict(Enum):
    """In a word."""

    HEALTHY = "healthy"
    IDLE = "idle"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class WorkerRates:
    """One worker."""

    worker_id: str
    role: str
    running: int
    max_sequences: int
    phases: tuple[PhaseRates, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found."""

    verdict: Verdict
    summary: str
    """The verdict in a sentence."""
    seconds: float
    findings: tuple[Finding, ...]
    """The worst first."""
    requests: int
    """That `parts` are means of."""
    parts: tuple[tuple[str, float], ...]
    """Where a mean request's time went, in seconds."""
    workers: tuple[WorkerRates, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        value = asdict(self) | {"verdict": self.verdict.value, "parts": dict(self.parts)}
        for finding in value["findings"]:
            finding["severity"] = Severity(finding["severity"]).name.lower()
        for worker in value["workers"]:
            for phase in worker["phases"]:
                phase["bound"] = phase["bound"].value
        return value


def diagnose(snapshot: Snapshot, wanted: Wanted = AS_ASKED) -> Diagnosis:
    """What a snapshot says, judged by what is `wanted`."""
    picture = Picture.of(snapshot, wanted)
    found = [
        *fleet_findings(picture),
        *first_token_findings(picture),
        *stream_findings(picture),
    ]
    found.sort(key=lambda one: (-one.severity, -one.weight))
    answered = [one for one in picture.requests if one.answered]
    verdict = _verdict(picture, found)
    return Diagnosis(
        verdict=verdict,
        summary=_summary(verdict, found, answered),
        seconds=picture.seconds,
        findings=tuple(found),
        requests=len(answered),
        parts=tuple(
            (name, mean([getattr(one, field) for one in answered])) for name, field in PARTS
        ),
        workers=tuple(_rates(one, picture.seconds) for one in picture.workers),
    )


def _verdict(picture: Picture, found: list[Finding]) -> Verdict:
    if any(one.severity is Severity.PROBLEM for one in found):
        return Verdict.PROBLEM
    return Verdict.IDLE if _is_idle(picture) else Verdict.HEALTHY


def _is_idle(picture: Picture) -> bool:
    return not (
        picture.requests
        or picture.after.queue.waiting
        or picture.after.router.running_requests
        or any(one.phases for one in picture.workers)
    )


def _summary(verdict: Verdict, found: list[Finding], answered: list[Request]) -> str:
    match verdict:
        case Verdict.PROBLEM:
            return found[0].title
        case Verdict.IDLE:
            return (
                "Nothing ran, so there is nothing to see: ask again while requests run, such as "
                "`baton generate` in another terminal, with `--seconds` for longer."
            )
        case Verdict.HEALTHY:
            return _healthy(answered)


def _healthy(answered: list[Request]) -> str:
    if not answered:
        return "Requests run and none has ended yet; nothing is wrong as far as that shows."
    ttft_s = mean([one.ttft_s for one in answered])
    itls = [one.itl_s for one in answered if one.itl_s is not None]
    between = f", {duration(mean(itls))} between tokens" if itls else ""
    return f"Healthy: {duration(ttft_s)} to the first token{between}, targets are held."


def _rates(worker: Worker, seconds: float) -> WorkerRates:
    return WorkerRates(
        worker.worker_id,
        worker.role,
        worker.running,
        worker.max_sequences,
        tuple(phase_rates(worker, seconds)),
    )
