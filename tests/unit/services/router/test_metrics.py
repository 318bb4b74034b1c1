"""Metrics of the router itself, the queue and the fleet."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from baton import errors
from baton.policy.fleet import Role
from services.router import metrics as told
from services.router.metrics import RouterMetrics
from services.router.register import Register
from tests.support.policy import worker
from tests.support.scrape import read


class Fleet:
    redis_available = True
    degraded = ""
    snapshot = None
    workers = ()
    failing = ()

    def usable(self, one):
        return one.worker_id not in self.failing


@pytest.fixture
def fleet():
    return Fleet()


@pytest.fixture
def register():
    return Register(5)


@pytest.fixture
def metrics(fleet, register):
    dispatcher = SimpleNamespace(waiting=2, holding=3)
    return RouterMetrics(register, dispatcher, fleet, [1, 2], lambda: 7)


async def test_requests_are_told_by_how_and_why_they_ended(metrics, register):
    for error in (
        None,
        None,
        asyncio.CancelledError(),
        errors.InvalidRequest("prompt", "is empty"),
        errors.Exhausted("no", reason="TARGET_MISSED"),
    ):
        try:
            with register.request():
                if error is not None:
                    raise error
        except BaseException:  # noqa: BLE001, S110 - whatever it was
            pass
    found = await read(metrics.source())
    counted = {
        (one.labels["outcome"], one.labels["reason"]): one.value
        for one in found.samples
        if one.name == told.REQUESTS.name
    }
    assert {key: value for key, value in counted.items() if value} == {
        ("completed", ""): 2,
        ("cancelled", ""): 1,
        ("failed", "INVALID_REQUEST"): 1,
        ("refused", "TARGET_MISSED"): 1,
    }


async def test_counts_go_by_the_register(metrics, register):
    counters = register.counters
    counters.retried_legs, counters.resumed, counters.recomputed = 1, 2, 3
    counters.migrated, counters.degraded, counters.local, counters.limited = 4, 5, 6, 7
    found = await read(metrics.source())
    metrics_in_order = (
        told.RETRIED, told.RESUMED, told.RECOMPUTED, told.MIGRATED, told.DEGRADED_REQUESTS,
        told.LOCAL, told.LIMITED,
    )  # fmt: skip
    assert [found.value(metric) for metric in metrics_in_order] == [1, 2, 3, 4, 5, 6, 7]


async def test_what_is_held_is_told(metrics, register, fleet):
    fleet.snapshot = SimpleNamespace(waiting=3, turns=2, claims=1, queued_s=4.25)
    with register.request():
        found = await read(metrics.source())
    assert found.value(told.RUNNING) == 1
    assert found.value(told.WAITING) == 2
    assert found.value(told.HELD) == 3
    assert found.value(told.LEASES) == 2
    assert found.value(told.INDEXED) == 7
    queue = (told.QUEUE_WAITING, told.TURNS, told.CLAIMS, told.QUEUE_WORK)
    assert [found.value(metric) for metric in queue] == [3, 2, 1, 4.25]


async def test_without_a_snapshot_the_queue_is_not_told(metrics, fleet):
    fleet.redis_available = False
    found = await read(metrics.source())
    assert found.value(told.REDIS) == 0
    assert not found.families[told.QUEUE_WAITING.name].samples


async def test_workers_are_told_by_role_and_state(metrics, fleet):
    one, two, three = (worker(f"decode-{i}", Role.DECODE) for i in range(3))
    fleet.workers = (one, two, replace(three, draining=True))
    fleet.failing = ("decode-1",)
    fleet.degraded = "no prefill worker is there"
    found = await read(metrics.source())
    for state in ("ready", "failing", "draining"):
        assert found.value(told.WORKERS, role="decode", state=state) == 1
        assert found.value(told.WORKERS, role="prefill", state=state) == 0
    assert found.value(told.DEGRADED) == 1
    errors_told = [s for s in found.samples if s.name == told.COST_ERROR.name]
    assert {s.labels["worker"] for s in errors_told} == {"decode-0", "decode-1", "decode-2"}
