"""A day of two kinds of requests, the fleet that serves it, and who may resize its pools.

Long prompts with short answers, which are prefill's work, come most in the early afternoon;
short prompts with long answers, which are decode's, in the evening. Lengths and prefixes are the
trace's. The day is short, so that it can be simulated: everything in it changes faster than on
a real one, while workers start as slowly as they do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.policy.cost import StepCost
from baton.policy.fleet import Role
from baton.policy.sizing import Profile, Targets, Traffic, decode_need, prefill_need
from bench.sim.fleet import FleetConfig
from bench.sim.loads import Kind, Load, daily, mixed, remembered
from bench.sim.routers import RouterConfig
from bench.sim.scaled import EPOCH_S, ScaledScenario
from bench.sim.scalers import Hpa, HpaConfig, Planned, SimScaler, Static
from bench.sim.worker import Spec
from bench.sim.workload import Line
from services.planner.config import PlannerConfig
from services.planner.history import History
from services.planner.planner import Planner

STATIC_PEAK, STATIC_MEAN, HPA = "static, peak", "static, mean", "HPA on CPU use"
PLANNER, PRESENT = "planner", "planner, no forecast"
SCALERS = (STATIC_PEAK, STATIC_MEAN, HPA, PRESENT, PLANNER)

SLOWER = 6.0
"""By how much a worker is slower than the 8B model's of `bench.simulate`: a larger model, so
that a few requests need several workers."""
COST = StepCost(
    SLOWER * 7e-3, SLOWER * 33e-6, SLOWER * 1.3e-9, SLOWER * 30e-6, SLOWER * 55e-9, 0.05
)
SPEC = Spec(COST, 32, 200_000, 4096, 2 * COST.step_s(prompt_tokens=4096), 0.05)
LONGER = 6
"""By how much answers are longer than the trace's where they are long there."""
TTFT_S, ITL_S = 5.0, 0.2


@dataclass(frozen=True, slots=True)
class Day:
    """The load of one day, what was seen the days before, and the pools that both need."""

    load: Load
    history: History
    config: PlannerConfig
    peak: dict[Role, int]
    mean: dict[Role, int]
    seed: int
    cold_start_s: float = 120.0

    def scenario(self, name: str) -> ScaledScenario:
        """The fleet that one of SCALERS begins with, under the day's load."""
        first = self.mean if name == STATIC_MEAN else self.peak
        return ScaledScenario(
            fleet=FleetConfig(
                first[Role.PREFILL],
                first[Role.DECODE],
                SPEC,
                ttft_target_s=self.config.ttft_target_s,
                itl_target_s=self.config.itl_target_s,
                seed=self.seed,
            ),
            arrivals=self.load.arrivals,
            end_s=self.load.end_s,
            cold_start_s=self.cold_start_s,
            routers=RouterConfig(poll_s=0.5, tell_s=0.1),
            copies=self.load.copies,
        )

    def scaler(self, name: str, cpu_target: float = 0.7) -> SimScaler:
        """One of SCALERS."""
        if name == HPA:
            return Hpa(self.config, HpaConfig(target=cpu_target))
        if name not in (PLANNER, PRESENT):
            return Static()
        planner = Planner(replace(self.config, forecast=name == PLANNER))
        planner.restore(self.history)
        return Planned(planner)


def day(lines: Sequence[Line], *, season_s: float, size: float, before: int, seed: int = 0) -> Day:
    """A day after `before` others like it. `size` scales the load."""
    kinds = [
        Kind(documents(lines), daily(0.15 * size, 1.2 * size, 14 / 24, 0.12, season_s)),
        Kind(long_answers(lines), daily(0.1 * size, 1.0 * size, 20 / 24, 0.09, season_s)),
    ]
    config = PlannerConfig(
        max_prefill=64,
        max_decode=64,
        ttft_target_s=TTFT_S,
        itl_target_s=ITL_S,
        season_s=season_s,
        bucket_s=season_s / 96,
    )
    past = mixed(kinds, before * season_s, seed + 1)
    history = remembered(past, EPOCH_S - before * season_s, config)
    peak, mean = provisioned(history, config)
    config = replace(config, max_prefill=peak[Role.PREFILL] + 2, max_decode=peak[Role.DECODE] + 2)
    return Day(mixed(kinds, season_s, seed), history, config, peak, mean, seed)


def documents(lines: Sequence[Line]) -> list[Line]:
    """Requests with short answers."""
    return [line for line in lines if line.output_tokens < 100]


def long_answers(lines: Sequence[Line]) -> list[Line]:
    """Requests with short prompts and long answers, made longer."""
    return [
        replace(line, output_tokens=LONGER * line.output_tokens)
        for line in lines
        if line.output_tokens >= 200 and line.input_tokens < 8000
    ]


def provisioned(history: History, config: PlannerConfig) -> tuple[dict[Role, int], dict[Role, int]]:
    """Workers of each role that are enough for the busiest hour of a day, and for its mean, as
    somebody would provision who knows the load."""
    seen = list(history.buckets.values())
    hour = max(1, round(config.season_s / 24 / config.bucket_s))
    profile = Profile(COST, SPEC.step_tokens, SPEC.sequences, SPEC.kv_tokens)
    targets = Targets(config.ttft_target_s, config.itl_target_s, config.attainment)

    def needs(pieces: Sequence[Traffic]) -> dict[Role, int]:
        columns = zip(*(piece.values() for piece in pieces), strict=True)
        mean = Traffic(*(config.headroom * sum(column) / len(pieces) for column in columns))
        return {
            Role.PREFILL: prefill_need(mean, profile, targets).workers,
            Role.DECODE: decode_need(mean, profile, targets).workers,
        }

    hours = [needs(seen[at : at + hour]) for at in range(len(seen) - hour + 1)]
    return {role: max(one[role] for one in hours) for role in Role}, needs(seen)
