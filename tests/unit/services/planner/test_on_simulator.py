"""The planner on a simulated fleet: what comes of its decisions for requests and GPUs."""

from dataclasses import replace
from functools import cache

from baton.policy.cost import StepCost
from baton.policy.fleet import Role
from bench.sim.fleet import FleetConfig
from bench.sim.loads import Kind, Load, mixed, pulse, ramp, remembered, steady, synthetic
from bench.sim.routers import RouterConfig
from bench.sim.scaled import EPOCH_S, Scaled, ScaledScenario, run
from bench.sim.scalers import Hpa, Planned, SimScaler, Static
from bench.sim.worker import Spec
from services.planner.config import PlannerConfig
from services.planner.decision import Cause
from services.planner.planner import Planner

COST = StepCost(0.05, 1e-3, 1e-9, 1e-3, 1e-7, 0.05)
SPEC = Spec(COST, 8, 40_000, 2048, 2.0, 0.05)
CONFIG = PlannerConfig(
    max_prefill=8,
    max_decode=6,
    ttft_target_s=6.0,
    itl_target_s=0.2,
    cold_start_s=40.0,
    bucket_s=30.0,
    season_s=900.0,
    scale_down_after_s=120.0,
    period_s=30.0,
)
LINES = synthetic(1500, 60)
LONG_PROMPTS, LONG_ANSWERS = synthetic(2500, 20), synthetic(300, 250)
ROUGH = RouterConfig(poll_s=0.5, tell_s=0.1, disaggregation="always")


def simulated(load: Load, scaler: SimScaler, prefill: int, decode: int) -> Scaled:
    fleet = FleetConfig(
        prefill,
        decode,
        SPEC,
        ttft_target_s=CONFIG.ttft_target_s,
        itl_target_s=CONFIG.itl_target_s,
    )
    arrivals = load.arrivals
    return run(ScaledScenario(fleet, arrivals, load.end_s, 40.0, ROUGH, sample_s=10.0), scaler)


def planned(config: PlannerConfig = CONFIG) -> Planned:
    return Planned(Planner(config))


@cache
def spike() -> Load:
    return mixed([Kind(LINES, pulse(0.3, 2.2, 300.0, 600.0))], 900.0, 1)


def test_a_steady_load_is_held_by_pools_that_stay_as_they_are():
    load = mixed([Kind(LINES, steady(0.8))], 900.0, 0)
    result = simulated(load, planned(), 5, 5)
    assert result.held > 0.95
    assert all(result.turns(role) <= 2 for role in Role)
    last = result.samples[-1].replicas
    assert sum(last.values()) < 8
    assert last[Role.PREFILL] >= 2


@cache
def planned_spike() -> tuple[Planned, Scaled]:
    scaler = planned()
    return scaler, simulated(spike(), scaler, 2, 2)


def test_a_spike_is_met_at_once_with_fewer_gpus_than_its_peak_needs():
    scaler, result = planned_spike()
    peak = simulated(spike(), Static(), 6, 4)
    grown = [at for at, one in scaler.changes if one.wanted > one.current]
    assert EPOCH_S + 300 < min(grown) < EPOCH_S + 345
    assert result.gpu_hours < 0.8 * peak.gpu_hours
    assert result.held > 0.85 * peak.held
    assert result.held > simulated(spike(), Static(), 3, 2).held


def test_it_holds_as_much_as_an_autoscaler_on_cpu_use_with_fewer_gpus():
    _, result = planned_spike()
    hpa = simulated(spike(), Hpa(CONFIG), 2, 2)
    assert result.held >= hpa.held - 0.02
    assert result.gpu_hours < 0.9 * hpa.gpu_hours


def test_gpus_move_between_the_pools_within_the_budget():
    prompts = Kind(LONG_PROMPTS, ramp(1.0, 0.1, 300.0, 600.0))
    answers = Kind(LONG_ANSWERS, ramp(0.1, 1.2, 300.0, 600.0))
    load = mixed([prompts, answers], 900.0, 2)
    result = simulated(load, planned(replace(CONFIG, gpu_budget=7)), 5, 2)
    assert all(sum(one.replicas.values()) <= 7 for one in result.samples)
    before = max(result.samples[:30], key=lambda one: one.replicas[Role.PREFILL]).replicas
    after = max(result.samples[-20:], key=lambda one: one.replicas[Role.DECODE]).replicas
    assert before[Role.PREFILL] > before[Role.DECODE]
    assert after[Role.DECODE] > after[Role.PREFILL]
    assert result.held > 0.75


def test_what_comes_every_day_is_there_before_it_is_needed():
    every_day = pulse(0.3, 2.0, 400.0, 700.0)
    today = mixed([Kind(LINES, every_day)], 700.0, 4)
    past = mixed([Kind(LINES, lambda at_s: every_day(at_s % 900.0))], 2700.0, 5)
    knowing, present = planned(), planned(replace(CONFIG, forecast=False))
    knowing.planner.restore(remembered(past, EPOCH_S - 2700.0, CONFIG))
    with_forecast, without = (simulated(today, one, 2, 2) for one in (knowing, present))
    first = next(at for at, one in knowing.changes if one.wanted > one.current)
    assert first < EPOCH_S + 400.0
    assert with_forecast.held > without.held
    assert any(one.cause is Cause.FORECAST for _, one in knowing.changes)
