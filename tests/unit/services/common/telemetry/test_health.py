"""Whether a process lives and wants to be asked, over HTTP."""

import asyncio
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.common.telemetry import health
from services.common.telemetry.health import SILENCE_S, Health
from services.common.telemetry.metrics import measured


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def get(address, path):
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_it_lives_while_the_loop_turns():
    clock = Clock()
    one = Health(clock)
    one.start()
    one.set_ready(True)
    clock.now = SILENCE_S
    assert (one.problem, one.ready) == ("", True)
    clock.now = SILENCE_S + 2
    assert one.problem == "the event loop has not turned for 12 s"
    assert not one.ready
    await one.beat()
    assert (one.problem, one.ready) == ("", True)
    await one.close()


async def test_what_nothing_beats_for_is_not_stuck():
    clock = Clock()
    one = Health(clock)
    clock.now = 1000.0
    assert one.problem == ""
    one.start()
    await one.close()
    clock.now = 2000.0
    assert one.problem == ""


async def test_troubles_are_told_when_they_come_and_go():
    one, told, troubles = Health(), [], ["", ""]

    async def on_change(alive):
        told.append(alive)

    one.listen(on_change)
    for index in range(2):
        one.watch(lambda index=index: troubles[index])
    for troubles[:] in (["", ""], ["", "b"], ["a", "b"], ["a", ""], ["", ""], ["", ""]):
        await one.beat()
        assert one.problem == (troubles[0] or troubles[1])
    assert told == [False, True]


async def test_it_beats_by_itself_even_where_a_trouble_fails(monkeypatch, caplog):
    monkeypatch.setattr(health, "BEAT_S", 0.01)
    asked = 0

    def fails():
        nonlocal asked
        asked += 1
        raise ValueError("broken")

    one = Health()
    one.watch(fails)
    one.start()
    async with asyncio.timeout(10):
        while asked < 3:
            await asyncio.sleep(0.01)
    await one.close()
    assert one.problem == ""
    assert "health could not be told" in caplog.text


async def test_is_served_beside_the_metrics():
    async with measured("router", "router-1", "127.0.0.1:0") as metrics:

        async def ask(path):
            return await asyncio.to_thread(get, metrics.address, path)

        assert await ask("/live") == (200, "live\n")
        assert await ask("/ready") == (503, "not ready\n")
        metrics.health.set_ready(True)
        assert await ask("/ready") == (200, "ready\n")
        metrics.health.watch(lambda: "nothing is done")
        await metrics.health.beat()
        assert await ask("/live") == (503, "nothing is done\n")
        status, body = await ask("/metrics")
        assert status == 200
        assert "baton_scrape_errors_total" in body


async def test_a_loop_that_is_stuck_is_told(monkeypatch):
    monkeypatch.setattr(health, "SILENCE_S", 0.2)
    async with measured("router", "router-1", "127.0.0.1:0") as metrics:
        metrics.health.set_ready(True)
        time.sleep(0.3)  # noqa: ASYNC251 - that is the point
        with ThreadPoolExecutor() as others:
            asked = [others.submit(get, metrics.address, path) for path in ("/live", "/ready")]
            (live, why), (ready, _) = [one.result(10) for one in asked]
    assert (live, ready) == (503, 503)
    assert why.startswith("the event loop has not turned")


@pytest.mark.parametrize("path", ["/live/", "/", "/other"])
async def test_other_paths_are_the_metrics(path):
    async with measured("router", "router-1", "127.0.0.1:0") as metrics:
        _, body = await asyncio.to_thread(get, metrics.address, path)
    assert "baton_scrape_errors_total" in body
