"""Decides how many workers each pool is to have.

One decision: measure the load (`meter`), size the pools for it and for what is foreseen (`slow`),
add what queues and missed targets ask for (`fast`), let pools shrink only late (`settle`), and
share what GPUs there are (`share`).
"""

from collections.abc import Mapping

from baton.policy.fleet import Role
from baton.policy.sizing import Profile, Traffic
from services.planner.buckets import Bucket
from services.planner.cold_start import ColdStarts
from services.planner.config import PlannerConfig
from services.planner.decision import Cause, Change, Decision, Sizing
from services.planner.fast import Alarm, Watch
from services.planner.foresight import Foresight
from services.planner.history import History
from services.planner.lesson import Lesson
from services.planner.meter import Meter
from services.planner.observation import Observation
from services.planner.pools import PoolView
from services.planner.settle import Settler
from services.planner.share import Counts, Wish, share
from services.planner.slow import Estimate, estimate


class _Recent:
    """What was seen in the last minutes. After the clock was set back, or the planner away for
    a while, it says nothing any more."""

    def __init__(self, config: PlannerConfig) -> None:
        self.last_s: float | None = None
        self.gap_s = config.period_s + config.react_s
        self.meter = Meter(config)
        self.bucket = Bucket(config)
        self.cold_starts = ColdStarts(config)
        self.foresight = Foresight(config)
        self.watch = Watch(config)
        self.settlers = {role: Settler(config) for role in Role}
        self.lessons = {role: Lesson(config) for role in Role}

    def goes_on(self, at_s: float) -> bool:
        """Whether this moment follows the last one."""
        return self.last_s is None or self.last_s < at_s <= self.last_s + self.gap_s


class Planner:
    """Looks at a fleet every `config.react_s` and says what is to be done.

    Pure of IO and clocks: what it decides follows from what it was shown, in that order. One
    thread at a time may call it.
    """

    def __init__(self, config: PlannerConfig) -> None:
        self.config = config
        self.history = History(config.bucket_s)
        """What to keep for the next planner; another value whenever it has changed."""
        self.present: Traffic | None = None
        """The load as it was last measured; None: not known yet."""
        self.foreseen: Traffic | None = None
        """The load at the end of the time that is planned for; None: no forecast."""
        self._profiles: dict[Role, Profile] = {}
        self._recent = _Recent(config)

    def restore(self, history: History) -> None:
        """Goes on from what an earlier planner remembered. The load in pieces of another length
        is of no use; how long workers took to start is."""
        if history.bucket_s != self.config.bucket_s:
            history = History(self.config.bucket_s, cold_start_s=history.cold_start_s)
        self.history = history

    def decide(self, observation: Observation) -> Decision:
        """What is to be done now. Nothing is, as long as the load is not known."""
        at_s = observation.at_s
        if not self._recent.goes_on(at_s):
            self._recent = _Recent(self.config)
            self.present = None
        recent = self._recent
        recent.last_s = at_s
        views = {role: PoolView.of(observation, role) for role in Role}
        self.history = recent.cold_starts.watch(at_s, observation.pools, self.history)
        since = recent.meter.add(at_s, observation.totals)
        if since is not None:
            self.history = recent.bucket.add(at_s, *since, self.history)
        self.present = recent.meter.present() or self.present
        for role in Role:
            profile = Profile.of(observation.workers, role)
            # After a restart of all workers those before tell more than the priors of the new.
            if profile is not None and (profile.measured or role not in self._profiles):
                self._profiles[role] = profile
        alarms, notes = recent.watch.look(observation, views, recent.meter)
        estimates, unknown = self._estimates(at_s)
        notes += unknown
        wishes = {
            role: self._wish(
                at_s,
                view,
                estimates.get(role),
                next((alarm for alarm in alarms if alarm.role is role), None),
            )
            for role, view in views.items()
        }
        counts = share(wishes, self.config)
        notes += [wish.note for wish in wishes.values() if wish.note]
        notes += self._short(wishes, counts)
        return Decision(
            at_s,
            self._changes(at_s, views, wishes, counts),
            tuple(Sizing(role, one.needed, one.why) for role, one in estimates.items()),
            tuple(notes),
        )

    def _estimates(self, at_s: float) -> tuple[Mapping[Role, Estimate], list[str]]:
        """What each role needs, where that is known; and what can't be told."""
        if self.present is None:
            return {}, []
        foreseen = self._recent.foresight.until(self.history, self.present, at_s)
        self.foreseen = foreseen[-1].traffic if foreseen else None
        estimates, notes = {}, []
        for role, profile in sorted(self._profiles.items(), key=lambda one: one[0].value):
            try:
                found = estimate(role, self.present, foreseen, profile, self.config)
            except (ArithmeticError, ValueError) as error:  # a worker or a sum that says nonsense
                notes.append(f"what {role.value} needs can't be told: {error!r}")
            else:
                estimates[role] = found
        return estimates, notes

    def _wish(
        self, at_s: float, view: PoolView, estimate: Estimate | None, alarm: Alarm | None
    ) -> Wish:
        role, current = view.role, view.replicas
        least, most = self.config.least(role), self.config.most(role)
        need, cause, why = current, Cause.BOUNDS, f"{least} to {most} are allowed"
        lesson = self._recent.lessons[role]
        if estimate is not None:
            if alarm is not None and (more := alarm.wanted - max(estimate.needed, current)) > 0:
                lesson.learn(at_s, more)
            estimate = estimate.plus(lesson.extra(at_s))
            need, cause, why = estimate.near(current), Cause.FORECAST, estimate.why
        if alarm is not None and alarm.wanted > need:
            need, cause, why = alarm.wanted, alarm.cause, alarm.why
        in_use = view.floor(self.config.itl_target_s)
        floor = max(least, in_use)
        allowed = max(floor, min(need, most))
        hold, reason = self._recent.settlers[role].hold(at_s, current, allowed)
        hold = max(floor, min(hold, most))
        note = ""
        if need > most:
            note = f"{role.value} needs {need} ({why}), but {most} are the most allowed"
        elif need < current and in_use >= current:
            note = f"{role.value} needs {need}, but what is in use fills {current}"
        elif reason:
            note = f"{role.value} needs {allowed} and has {current}, but {reason}"
        if need < least or not least <= current <= most:
            cause = Cause.BOUNDS
        return Wish(current, floor, allowed, hold, cause, why, note)

    def _short(self, wishes: Mapping[Role, Wish], counts: Counts) -> list[str]:
        """Pools that get less than they need, since the budget has no more GPUs."""
        return [
            f"{role.value} needs {wish.need}, but gets {counts[role]} of the budget of "
            f"{self.config.gpu_budget} GPUs"
            for role, wish in wishes.items()
            if counts[role] < wish.need
        ]

    def _changes(
        self,
        at_s: float,
        views: Mapping[Role, PoolView],
        wishes: Mapping[Role, Wish],
        counts: Counts,
    ) -> tuple[Change, ...]:
        """Where there are to be fewer comes first: the others may need the GPUs."""
        changes = []
        for role, wish in wishes.items():
            wanted, cause = counts[role], wish.cause
            if wanted == wish.current:
                continue
            why = f"{role.value} from {wish.current} to {wanted}: {wish.why}"
            if wanted < wish.current:
                self._recent.settlers[role].shrunk(at_s)
                if wanted < wish.hold:
                    cause = Cause.BOUNDS
                    why += f", and the budget of {self.config.gpu_budget} GPUs is needed elsewhere"
                elif wish.current <= self.config.most(role):
                    cause = Cause.SURPLUS
            victims = views[role].victims(wanted)
            changes.append(Change(role, wish.current, wanted, cause, why, victims))
        return tuple(sorted(changes, key=lambda one: one.wanted - one.current))
