"""The doctor on the page: of the last seconds, only so often, and never in the way."""

import pytest

from baton.doctor.diagnosis import diagnose
from services.gateway.page import verdict
from services.gateway.page.verdict import EVERY_S, LEAST_S, WINDOW_S, Doctor
from tests.support.clock import FakeClock
from tests.support.page import fleet, report


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def seen(monkeypatch):
    """The snapshots that were judged."""
    taken = []

    def judging(snapshot):
        taken.append(snapshot)
        return diagnose(snapshot)

    monkeypatch.setattr(verdict, "diagnose", judging)
    return taken


async def test_it_says_nothing_before_it_has_seen_enough(clock):
    doctor = Doctor(clock)
    assert await doctor.verdict([fleet()], []) is None
    clock.advance(LEAST_S / 2)
    assert await doctor.verdict([fleet()], []) is None
    clock.advance(LEAST_S / 2)
    said = await doctor.verdict([fleet()], [])
    assert said["state"] in ("good", "warn")
    assert said["headline"] == "Idle: no request runs."


async def test_it_sees_the_requests_of_the_window_and_those_before_apart(clock, seen):
    doctor = Doctor(clock)
    await doctor.verdict([fleet()], [report("before")])
    for second in range(int(WINDOW_S) + 5):
        clock.advance(1.0)
        await doctor.verdict([fleet()], [report(f"r{second}")])
    last = seen[-1]
    assert last.seconds == pytest.approx(WINDOW_S, abs=1.0)
    names = [one.request_id for one in last.requests]
    assert len(names) == round(last.seconds)
    assert "before" in [one.request_id for one in last.earlier]
    assert not {one.request_id for one in last.earlier} & set(names)


async def test_it_judges_only_every_few_looks(clock, seen):
    doctor = Doctor(clock)
    for _ in range(20):
        await doctor.verdict([fleet()], [])
        clock.advance(0.5)
    assert len(seen) == pytest.approx((10.0 - LEAST_S) / EVERY_S, abs=1)


async def test_what_was_seen_before_a_pause_is_forgotten(clock, seen):
    doctor = Doctor(clock)
    for _ in range(5):
        await doctor.verdict([fleet()], [])
        clock.advance(1.0)
    assert seen
    clock.advance(600.0)
    assert await doctor.verdict([fleet()], []) is None


async def test_late_first_tokens_are_a_problem_in_words(clock):
    doctor = Doctor(clock)
    await doctor.verdict([fleet()], [])
    clock.advance(5.0)
    late = [report(f"r{i}", queue_s=9.0, prefill_s=0.1) for i in range(20)]
    said = await doctor.verdict([fleet(waiting=8, running=8)], late)
    assert said["state"] == "bad"
    assert said["findings"][0]["title"]
    assert {"code", "state", "title", "evidence", "advice"} == said["findings"][0].keys()


def failed(router_id, count):
    told = fleet()
    told.router.router_id, told.router.failed_requests = router_id, count
    return told


async def codes(doctor, *fleets):
    said = await doctor.verdict(fleets, [])
    return None if said is None else [one["code"] for one in said["findings"]]


async def test_what_any_router_counts_is_seen(clock):
    doctor = Doctor(clock)
    await codes(doctor, failed("a", 0), failed("b", 50))
    clock.advance(5.0)
    assert await codes(doctor, failed("a", 0), failed("b", 60)) == ["fleet.failed"]


async def test_what_one_router_counted_long_ago_is_no_news_when_another_goes(clock):
    doctor = Doctor(clock)
    await codes(doctor, failed("a", 0), failed("b", 50))
    clock.advance(5.0)
    assert await codes(doctor, failed("b", 50)) is None
    clock.advance(5.0)
    assert await codes(doctor, failed("b", 50)) == []


async def test_a_failing_doctor_takes_the_page_nothing(clock, monkeypatch, caplog):
    monkeypatch.setattr(verdict, "diagnose", lambda snapshot: 1 / 0)
    doctor = Doctor(clock)
    await doctor.verdict([fleet()], [])
    clock.advance(5.0)
    assert await doctor.verdict([fleet()], []) is None
    assert "the doctor failed" in caplog.text
