"""What the planner's metrics tell."""

from baton.policy.fleet import Role
from services.common.telemetry.metric import Reading, Source, counter, gauge, histogram
from services.planner.decision import Cause
from services.planner.leadership import Leadership
from services.planner.planner import Planner
from services.planner.standing import FAILURES, Standing

REPLICAS = gauge(
    "baton_planner_replicas",
    "Workers by role and state: current (asked for), ready (they serve), wanted (by the last "
    "decision; told by the planner that leads).",
    *("role", "state"),
    stands=True,
)
NEEDED = gauge(
    "baton_planner_needed_workers",
    "Workers that the load needs, before bounds, budget and cool-downs; told by the planner that "
    "leads.",
    "role",
    stands=True,
)
ARRIVALS = gauge(
    "baton_planner_arrivals_per_second",
    "Requests a second: measured, and foreseen for the end of the time that is planned for.",
    "which",
    stands=True,
)
DECISIONS = counter(
    "baton_planner_decisions_total",
    "Changes that were made, or in a dry run would have been, by role, direction (up, down) and "
    "cause.",
    *("role", "direction", "cause"),
)
FAILURES_TOLD = counter(
    "baton_planner_failures_total",
    "What went wrong: conflict (someone else was faster), denied (no permission), unavailable "
    "(the orchestrator gave no answer), redis, bug.",
    "kind",
)
LEADER = gauge("baton_planner_leader", "1: this planner acts; 0: another one does.", stands=True)
DRY_RUN = gauge("baton_planner_dry_run", "1: it only says what it would do.", stands=True)
UNSOUND = gauge(
    "baton_planner_unsound_seconds",
    "For so long it has not seen all that it goes by, or not done all that it decided.",
    stands=True,
)
DECIDE = histogram("baton_planner_decide_seconds", "What a decision took.")
METRICS = (
    *(REPLICAS, NEEDED, ARRIVALS, DECISIONS, FAILURES_TOLD),
    *(LEADER, DRY_RUN, UNSOUND, DECIDE),
)


class PlannerMetrics:
    """Reads what a planner is at."""

    def __init__(
        self,
        planner: Planner,
        standing: Standing,
        leadership: Leadership,
        *,
        dry_run: bool,
    ) -> None:
        self._planner = planner
        self._standing = standing
        self._leadership = leadership
        self._dry_run = dry_run

    def source(self) -> Source:
        """Reads the metrics of this module."""
        return Source("planner", self._read, METRICS)

    async def _read(self) -> list[Reading]:
        standing = self._standing
        leads = self._leadership.left_s > 0
        return [
            LEADER.at(leads),
            DRY_RUN.at(self._dry_run),
            UNSOUND.at(standing.unsound_s),
            *self._arrivals(),
            DECIDE.at(standing.decide_s),
            *(FAILURES_TOLD.at(standing.failures[kind], kind) for kind in FAILURES),
            *self._decisions(),
            *self._pools(leads),
        ]

    def _arrivals(self) -> list[Reading]:
        loads = {"measured": self._planner.present, "foreseen": self._planner.foreseen}
        return [ARRIVALS.at(one.requests, which) for which, one in loads.items() if one is not None]

    def _decisions(self) -> list[Reading]:
        done = self._standing.done
        return [
            DECISIONS.at(done[role, way, cause.value], role.value, way, cause.value)
            for role in Role
            for way in ("up", "down")
            for cause in Cause
            if done[role, way, cause.value] or _POSSIBLE[cause] in ("", way)
        ]

    def _pools(self, leads: bool) -> list[Reading]:
        standing = self._standing
        told = []
        for role, pool in standing.pools.items():
            told.append(REPLICAS.at(pool.replicas, role.value, "current"))
            told.append(REPLICAS.at(pool.ready, role.value, "ready"))
            if leads:
                told.append(REPLICAS.at(standing.wanted(role), role.value, "wanted"))
        if leads and standing.decision is not None:
            told.extend(NEEDED.at(one.needed, one.role.value) for one in standing.decision.sizings)
        return told


_POSSIBLE = dict.fromkeys(Cause, "up") | {Cause.SURPLUS: "down", Cause.BOUNDS: ""}
"""The direction of a cause; empty: both."""
