"""The fast loop: what queues and missed targets say that no model foresaw.

Its signs are relative to the pool as it is, so they count only while no worker is on its way,
and what requests met is judged only when enough of them ended since the last one came.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from baton.policy.fleet import Role
from services.common.fleet.demand import DemandTotals
from services.planner.config import PlannerConfig
from services.planner.decision import Cause
from services.planner.meter import Meter
from services.planner.observation import Observation
from services.planner.pools import PoolView

LOOKS = 3
"""Looks that a queue is the mean of."""
QUEUE_SHARE = 0.5
"""Share of the first token's target that prompts may have to wait."""
ENOUGH = 20
"""Requests that must have been judged."""
FULL = 0.9
"""Share of places or KV room in use that leaves hardly any."""
IDLE = 0.7
"""Share in use below which more workers would not make streams faster."""
SURE = 2.0
"""Standard deviations that a share of held targets must be below what is wanted."""
LATE = 5.0
"""Multiple of a cold start after which workers that have not come may never: they keep the pool
from growing only where they are more than it grows by."""
STEP = 0.25
"""By how much a pool grows at once, at least a worker."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A pool that is too small."""

    role: Role
    wanted: int
    """At least what it is now: workers may be on their way already."""
    cause: Cause
    why: str


@dataclass(frozen=True, slots=True)
class Sign:
    """Something is amiss with a pool."""

    role: Role
    cause: Cause
    why: str
    helps: bool = True
    """Whether more workers would make it better."""


@dataclass(slots=True)
class Watch:
    """Remembers the last looks, and since when each pool is as large as it is."""

    config: PlannerConfig
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=LOOKS))
    places: deque[float] = field(default_factory=lambda: deque(maxlen=LOOKS))
    kv: deque[float] = field(default_factory=lambda: deque(maxlen=LOOKS))
    stuck: deque[bool] = field(default_factory=lambda: deque(maxlen=LOOKS))
    """Whether requests waited though prompts would have been begun: for room to decode."""
    grown_s: dict[Role, float] = field(default_factory=dict)
    counts: dict[Role, tuple[float, int, int]] = field(default_factory=dict)
    """Since when each pool has so many replicas, and ready workers."""
    at_s: float = 0.0

    def look(
        self, observation: Observation, views: dict[Role, PoolView], meter: Meter
    ) -> tuple[list[Alarm], list[str]]:
        """Pools that must grow now or must not shrink, and what is amiss but adds nobody now."""
        self.at_s = observation.at_s
        for role, view in views.items():
            since = self.at_s, view.replicas, view.ready
            before = self.counts.setdefault(role, since)
            if view.ready > before[2]:
                self.grown_s[role] = self.at_s
            if before[1:] != since[1:]:
                self.counts[role] = since
        prefill, decode = views[Role.PREFILL], views[Role.DECODE]
        queued_s = observation.queued_s / max(1, len(prefill.workers))
        self.waits.append(queued_s + prefill.backlog_s)
        self.places.append(decode.sequences_used)
        self.kv.append(decode.kv_used)
        self.stuck.append(observation.waiting > 0 and prefill.takes_prompts)
        alarms, notes = [], []
        for sign in filter(None, (self._first_tokens(meter, observation), self._streams(meter))):
            view = views[sign.role]
            wanted = view.replicas + max(1, math.floor(STEP * view.replicas))
            if not sign.helps:
                notes.append(f"{sign.why}, but more {sign.role.value} workers would not help")
                continue
            if but := self._but(sign, view):
                notes.append(f"{sign.why}, but {but}")
                wanted = view.replicas
            alarms.append(Alarm(sign.role, wanted, sign.cause, sign.why))
        return alarms, notes

    def _but(self, sign: Sign, view: PoolView) -> str:
        """Why the pool is not to grow for that yet; empty: it is."""
        name = sign.role.value
        if view.starting and not self._late(view):
            return f"{view.starting} {name} workers are on their way"
        if self.at_s - self.grown_s.get(sign.role, -math.inf) < self.config.period_s:
            return f"the last {name} worker has only just come"
        return ""

    def _late(self, view: PoolView) -> bool:
        """Whether the workers that start are a few that may never come."""
        long_s = self.at_s - self.counts[view.role][0]
        few = view.starting <= max(1, math.floor(STEP * view.ready))
        return few and view.ready > 0 and long_s > LATE * self.config.cold_start_s

    def _first_tokens(self, meter: Meter, observation: Observation) -> Sign | None:
        if len(self.waits) < LOOKS:
            return None
        target_s = self.config.ttft_target_s
        wait_s, places = _mean(self.waits), _mean(self.places)
        if all(self.stuck) and places < IDLE:
            why = (
                f"{observation.waiting} requests wait though prompts would be begun at once, and "
                f"{100 * places:.0f}% of places are taken: no decode worker has the KV room"
            )
            return Sign(Role.DECODE, Cause.QUEUE, why)
        judged = self._judged(meter, lambda one: one.ttft_judged + one.refused)
        asked = judged.ttft_judged + judged.refused
        full = places >= FULL and observation.waiting > 0
        late = self._missed(judged.ttft_held, asked)
        queue = wait_s > QUEUE_SHARE * target_s
        # Work of no hurry waits for long and holds its targets all the same.
        if not late and (asked >= ENOUGH or not (full or wait_s > target_s)):
            return None
        why = f"{wait_s:.2g} s of prompts are before the next one"
        if full:
            why = f"{observation.waiting} requests wait, {100 * places:.0f}% of places are taken"
        if late:
            why += (
                f", {100 * judged.ttft_held / asked:.0f}% of {asked:.0f} first tokens were in time"
            )
        if full:
            return Sign(Role.DECODE, Cause.QUEUE, why)
        if queue:
            return Sign(Role.PREFILL, Cause.QUEUE, why)
        helps = wait_s > QUEUE_SHARE / 4 * target_s or judged.refused > 0
        return Sign(Role.PREFILL, Cause.TTFT_MISSED, why, helps)

    def _streams(self, meter: Meter) -> Sign | None:
        kv_used = _mean(self.kv)
        if len(self.kv) == LOOKS and kv_used >= FULL:
            why = f"{100 * kv_used:.0f}% of the decode workers' KV room is taken"
            return Sign(Role.DECODE, Cause.KV_FULL, why)
        judged = self._judged(meter, lambda one: one.itl_judged)
        if not self._missed(judged.itl_held, judged.itl_judged):
            return None
        used = _mean(self.places)
        why = (
            f"{100 * judged.itl_held / judged.itl_judged:.0f}% of {judged.itl_judged:.0f} streams "
            f"were fast enough, {100 * used:.0f}% of the decode places are taken"
        )
        return Sign(Role.DECODE, Cause.ITL_MISSED, why, helps=used >= IDLE)

    def _judged(self, meter: Meter, count: Callable[[DemandTotals], float]) -> DemandTotals:
        """What requests met in the last period, or where few were judged in all the time since
        a worker came."""
        _, judged = meter.window(self.config.period_s)
        if count(judged) < ENOUGH:
            _, judged = meter.window(self.at_s - max(self.grown_s.values(), default=-math.inf))
        return judged

    def _missed(self, held: float, asked: float) -> bool:
        """Whether fewer held their target than is wanted, and not by chance."""
        wanted = self.config.attainment
        if asked < ENOUGH:
            return False
        return held / asked < wanted - SURE * math.sqrt(wanted * (1 - wanted) / asked)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
