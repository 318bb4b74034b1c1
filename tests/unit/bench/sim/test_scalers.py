"""The simulated HorizontalPodAutoscaler, and loads that change with time."""

import pytest

from baton.policy.fleet import Role
from bench.sim.loads import Kind, daily, mixed, pulse, ramp, remembered, steady, synthetic
from bench.sim.scaled import EPOCH_S
from bench.sim.scalers import Hpa, HpaConfig, recommended
from services.common.fleet.demand import DemandTotals
from services.planner.config import PlannerConfig
from services.planner.observation import Observation, Pool


@pytest.mark.parametrize(
    ("current", "busy", "wanted"),
    [
        (4, [0.7, 0.7, 0.7, 0.7], 4),
        (4, [0.76, 0.76, 0.76, 0.76], 4),  # within the tolerance
        (4, [1.0, 1.0, 1.0, 1.0], 6),  # 4 / 0.7 = 5.7
        (4, [0.1, 0.1, 0.1, 0.1], 1),
        (4, [1.0, 1.0], 4),  # two are not ready yet: idle, and so the pool is large enough
        (4, [1.0, 1.0, 1.0], 4),  # 3 / 4 / 0.7 = 1.07, within the tolerance
        (8, [1.0] * 7, 10),  # 7 / 8 / 0.7 = 1.25
        (4, [], 4),
    ],
)
def test_it_wants_what_the_published_algorithm_does(current, busy, wanted):
    assert recommended(HpaConfig(), current, busy) == wanted


class Clock:
    """An HPA of prefill workers whose pool is as it says."""

    def __init__(self, size):
        self.hpa = Hpa(PlannerConfig(max_prefill=20))
        self.now, self.size = 0.0, size

    def look(self, busy):
        pool = Pool(self.size, self.size)
        seen = Observation(self.now, (), 0, 0.0, DemandTotals(), dict.fromkeys(Role, pool))
        wishes = self.hpa.decide(seen, dict.fromkeys(Role, [busy] * self.size))
        self.size = next(one.wanted for one in wishes if one.role is Role.PREFILL)
        self.now += self.hpa.period_s
        return self.size


def test_it_goes_up_at_once_and_down_after_five_minutes():
    clock = Clock(4)
    assert clock.look(1.0) == 6
    sizes = [clock.look(0.1) for _ in range(22)]
    assert sizes[:19] == [6] * 19
    assert sizes[-1] == 1


def test_it_adds_four_or_doubles():
    clock = Clock(2)
    clock.hpa.config = HpaConfig(target=0.1)
    assert [clock.look(1.0) for _ in range(3)] == [6, 12, 20]


def test_shapes():
    assert [pulse(1, 5, 10, 20)(at) for at in (0, 10, 20)] == [1, 5, 1]
    assert [ramp(1, 3, 10, 20)(at) for at in (0, 15, 30)] == [1, 2, 3]
    day = daily(1, 3, 0.5, 0.1, 100)
    assert [day(50), day(150)] == [3, 3]
    assert day(0) == day(100) == pytest.approx(1, abs=1e-4)


def test_as_many_come_as_the_rate_says():
    lines = synthetic(100, 10, count=50)
    load = mixed([Kind(lines, pulse(1.0, 9.0, 500.0)), Kind(lines, steady(2.0))], 1000.0, 3)
    early = sum(one.at_s < 500 for one in load.arrivals)
    assert early == pytest.approx(1500, rel=0.1)
    assert len(load.arrivals) - early == pytest.approx(5500, rel=0.05)
    assert load == mixed([Kind(lines, pulse(1.0, 9.0, 500.0)), Kind(lines, steady(2.0))], 1000.0, 3)


def test_a_planner_remembers_the_load_of_the_days_before():
    config = PlannerConfig(bucket_s=100.0, season_s=1000.0)
    load = mixed([Kind(synthetic(100, 10), pulse(1.0, 5.0, 500.0))], 1000.0, 0)
    history = remembered(load, EPOCH_S - 1000.0, config)
    numbers = list(history.buckets)
    assert numbers == list(range(int(EPOCH_S / 100) - 10, int(EPOCH_S / 100)))
    rates = [one.requests for one in history.buckets.values()]
    assert sum(rates) * 100 == len(load.arrivals)
    assert sum(rates[:5]) / 5 == pytest.approx(1.0, rel=0.2)
    assert sum(rates[5:]) / 5 == pytest.approx(5.0, rel=0.2)
