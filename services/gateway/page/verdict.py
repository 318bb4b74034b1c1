"""The doctor's verdict for the page: on the last seconds, made anew every few looks."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.doctor.diagnosis import Diagnosis, Verdict, diagnose
from baton.doctor.finding import Finding, Severity
from baton.doctor.snapshot import EARLIER, Snapshot
from baton.v1 import inference_pb2
from services.gateway.page.rows import Row

WINDOW_S = 15.0
"""What a verdict is about."""
LEAST_S = 3.0
"""Less says nothing."""
EVERY_S = 2.0
MAX_REPORTS = 2_000

log = logging.getLogger(__name__)

_STATES = {Severity.INFO: "good", Severity.WARNING: "warn", Severity.PROBLEM: "bad"}
_ROUTERS_OWN = (
    "running_requests", "completed_requests", "failed_requests", "refused_requests",
    "limited_requests", "degraded_requests", "retried_legs",
)  # fmt: skip
"""What each router tells of itself alone; all else is the fleet's, as each of them sees it."""
Fleet = inference_pb2.GetFleetResponse
Reports = Sequence[inference_pb2.RequestReport]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    routers: frozenset[str]
    fleet: Fleet
    reports: tuple[inference_pb2.RequestReport, ...]
    """Of requests that ended since the look before."""


class Doctor:
    """Remembers the looks of the last seconds. For one event loop."""

    def __init__(self, monotonic: Clock = time.monotonic) -> None:
        self._monotonic = monotonic
        self._looks: deque[_Look] = deque()
        self._earlier: deque[inference_pb2.RequestReport] = deque(maxlen=EARLIER)
        self._verdict: Row | None = None
        self._next_s = 0.0

    async def verdict(self, fleets: Sequence[Fleet], reports: Reports) -> Row | None:
        """What is wrong by the last seconds, as all routers tell of them; None before there are
        enough. Never raises."""
        now_s = self._monotonic()
        routers = frozenset(fleet.router.router_id for fleet in fleets)
        self._remember(_Look(now_s, routers, _as_one(fleets), tuple(reports[-MAX_REPORTS:])))
        if now_s >= self._next_s and now_s - self._looks[0].at_s >= LEAST_S:
            self._next_s = now_s + EVERY_S
            self._verdict = await self._judge()
        return self._verdict

    def _remember(self, look: _Look) -> None:
        looks = self._looks
        unwatched = looks and look.at_s - looks[-1].at_s > WINDOW_S
        if unwatched or (looks and look.routers != looks[-1].routers):  # others' counts
            looks.clear()
            self._verdict = None
        if not looks:
            self._earlier.extend(look.reports)
        looks.append(look)
        while len(looks) > 2 and looks[1].at_s <= look.at_s - WINDOW_S:
            looks.popleft()
            self._earlier.extend(looks[0].reports)

    async def _judge(self) -> Row | None:
        first, last = self._looks[0], self._looks[-1]
        between = [one for look in list(self._looks)[1:] for one in look.reports]
        snapshot = Snapshot(
            seconds=last.at_s - first.at_s,
            before=first.fleet,
            after=last.fleet,
            requests=tuple(between),
            earlier=tuple(self._earlier),
        )
        try:
            return _row(await asyncio.to_thread(diagnose, snapshot))
        except Exception:
            log.exception("the doctor failed")
            return None


def _as_one(fleets: Sequence[Fleet]) -> Fleet:
    """The fleet as the first router sees it, and what all of them did."""
    whole = Fleet()
    whole.CopyFrom(fleets[0])
    for name in _ROUTERS_OWN:
        setattr(whole.router, name, sum(getattr(fleet.router, name) for fleet in fleets))
    return whole


def _row(diagnosis: Diagnosis) -> Row:
    worst = max((one.severity for one in diagnosis.findings), default=Severity.INFO)
    idle = diagnosis.verdict is Verdict.IDLE
    return {
        "state": _STATES[worst],
        "headline": "Idle: no request runs." if idle else diagnosis.summary,
        "findings": [_finding_row(one) for one in diagnosis.findings],
    }


def _finding_row(finding: Finding) -> Row:
    return {
        "code": finding.code,
        "state": _STATES[finding.severity],
        "title": finding.title,
        "evidence": list(finding.evidence),
        "advice": list(finding.advice),
    }
