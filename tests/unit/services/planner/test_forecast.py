"""What is remembered of the load, and foreseen from it."""

import json
import math
import zlib
from dataclasses import replace

import pytest

from baton.policy.fleet import Role
from baton.policy.sizing import Traffic
from services.common.fleet.demand import DemandTotals
from services.planner.buckets import Bucket
from services.planner.config import PlannerConfig
from services.planner.forecast import CEILING, forecast
from services.planner.foresight import DOUBT, Foresight
from services.planner.history import History
from services.planner.meter import Meter
from tests.support.planning import REQUEST, times

ONE = Traffic(1, 1000, 500_500, 1, 200, 220_000, 1000)
SEASON = 48


def remembered(rates, first=1000):
    return History(300, {first + at: ONE * rate for at, rate in enumerate(rates)})


def wave(at):
    return 20 + 15 * math.sin(2 * math.pi * at / SEASON)


def test_a_season_is_carried_on():
    found = forecast(remembered([wave(at) for at in range(3 * SEASON)]), SEASON * 300, 12)
    assert len(found) == 13
    for step, load in enumerate(found):
        assert load.requests == pytest.approx(wave(3 * SEASON - 1 + step), rel=0.15)
        assert load.mean_new_tokens == pytest.approx(1000)


def test_a_day_that_is_heavier_than_the_last_is_foreseen_heavier():
    days = [wave(at) * (1 if at < 2 * SEASON else 1.4) for at in range(3 * SEASON)]
    found = forecast(remembered(days), SEASON * 300, 4)
    assert found[3].requests > 1.2 * wave(2)


def test_a_trend_alone_goes_on_with_less_and_is_bounded():
    rates = [10 * 1.2**at for at in range(12)]
    found = forecast(remembered(rates), SEASON * 300, 6)
    assert rates[-1] < found[1].requests < found[-1].requests <= CEILING * rates[-1]


def test_hardly_anything_known_is_no_forecast():
    assert forecast(remembered([1, 2, 3]), SEASON * 300, 3) == ()


def test_gaps_and_silence_are_no_trouble():
    rates = [wave(at) for at in range(2 * SEASON)]
    holed = remembered(rates)
    kept = {at: one for at, one in holed.buckets.items() if at % 7 and not 1060 < at < 1070}
    found = forecast(History(300, kept), SEASON * 300, 3)
    assert all(math.isfinite(value) for load in found for value in load.values())
    silent = forecast(remembered([0] * 2 * SEASON), SEASON * 300, 3)
    assert [load.requests for load in silent] == [0, 0, 0, 0]


def test_a_few_long_requests_are_not_carried_on():
    history = remembered([1.0] * SEASON)
    huge = Traffic(1, 60_000, 1.8e9, 1, 200, 1.2e7, 60_000)
    history = history.with_bucket(1000 + SEASON, huge, 1000)
    assert forecast(history, SEASON * 300, 2)[0].mean_new_tokens < 15_000


def test_a_leap_is_no_trend():
    found = forecast(remembered([5.0] * 12 + [60.0]), SEASON * 300, 3)
    assert max(load.requests for load in found) == pytest.approx(60.0)


def test_what_is_foreseen_grows_no_more_than_today_suggests():
    config = PlannerConfig(season_s=SEASON * 300)
    history = remembered([wave(at) for at in range(3 * SEASON)], first=0)
    at_s = 3 * SEASON * 300 + 10.0
    usual = Foresight(config).until(history, ONE * wave(3 * SEASON), at_s)
    quiet = Foresight(config).until(history, ONE, at_s)
    growth = usual[-1].traffic.requests - wave(3 * SEASON)
    assert growth > 0
    share = DOUBT / wave(3 * SEASON)
    assert quiet[-1].traffic.requests == pytest.approx(1 + growth * share, rel=0.05)


def test_a_history_comes_back_as_it_was():
    history = remembered([1.5, 2.5]).with_cold_start(Role.DECODE, 90.0)
    assert History.from_bytes(history.to_bytes()) == history
    for junk in (b"", b"junk", history.to_bytes()[:-5]):
        with pytest.raises(ValueError, match="not a planner's history"):
            History.from_bytes(junk)


@pytest.mark.parametrize(
    ("where", "value"),
    [("load", -1.0), ("load", math.nan)]
    + [(where, one) for where in ("start", "length") for one in (-1.0, math.nan, math.inf)],
)
def test_values_that_nobody_measures_are_no_history(where, value):
    history = {
        "load": History(300, {7: ONE, 8: replace(ONE, new_pairs=value)}),
        "start": remembered([1.0]).with_cold_start(Role.DECODE, value),
        "length": History(value, {7: ONE}),
    }[where]
    kept = history.to_bytes()
    with pytest.raises(ValueError, match="not a planner's history"):
        History.from_bytes(kept)


@pytest.mark.parametrize("numbers", [[0, 10**12], [8, 7], [0, 2**13 + 1]])
def test_pieces_that_are_not_in_order_or_too_far_apart_are_no_history(numbers):
    kept = History(300, dict.fromkeys(numbers, ONE)).to_bytes()
    with pytest.raises(ValueError, match="not in order, or too far apart"):
        History.from_bytes(kept)


def test_bytes_of_any_kind_are_no_history():
    head = {"format": 1, "bucket_s": 300, "cold_start_s": {}, "buckets": []}
    heads = [head | {"buckets": [1e999]}, head | {"cold_start_s": []}, head | {"buckets": [7]}, []]
    texts = [json.dumps(one).encode() for one in heads] + [b"[" * 100_000, b"0" * 50_000_000]
    for text in texts:
        with pytest.raises(ValueError, match="not a planner's history"):
            History.from_bytes(zlib.compress(text + b"\n"))


def test_a_load_without_measure_can_be_kept():
    history = History(300, {7: replace(ONE, new_pairs=1e300)})
    assert History.from_bytes(history.to_bytes()).buckets[7].new_pairs == pytest.approx(1e37)


def test_old_pieces_go():
    history = remembered([1.0] * 50).with_bucket(1050, ONE, keep=10)
    assert sorted(history.buckets) == list(range(1041, 1051))


def test_a_piece_that_was_hardly_seen_does_not_count():
    bucket, history = Bucket(PlannerConfig()), History(300)
    for at_s in range(300_000, 300_900, 5):
        if not 300_300 < at_s < 300_500:
            history = bucket.add(at_s + 5, 5, times(REQUEST, 10), history)
    history = bucket.add(300_905, 5, REQUEST, history)
    assert {at: round(one.requests, 6) for at, one in history.buckets.items()} == {
        1000: 2.0,
        1002: 2.0,
    }


def test_a_meter_sees_a_burst_at_once_and_noise_not():
    meter = Meter(PlannerConfig())
    totals = DemandTotals()
    for look in range(60):
        totals += times(REQUEST, 50)
        meter.add(5.0 * look, totals)
    for look in range(60, 63):
        totals += times(REQUEST, 56)
        meter.add(5.0 * look, totals)
    usual = meter.present()
    assert usual is not None
    assert usual.requests == pytest.approx(10.3, rel=0.02)
    for look in range(63, 66):
        totals += times(REQUEST, 500)
        meter.add(5.0 * look, totals)
    burst = meter.present()
    assert burst is not None
    assert 90 < burst.requests < 100
