"""One attempt of a request at a time; a run can be ended from outside in any phase."""

import asyncio

import pytest

from baton.errors import InternalError, LostRace, Unavailable
from baton.naming import RequestId
from baton.policy.fleet import NOTHING, Claim, Usage
from services.worker.runs import PromptWork, Runs

COST = Usage(1, 20)


def claim(attempt: int = 0, request_id: str = "request") -> Claim:
    return Claim(RequestId(request_id), attempt)


@pytest.fixture
def runs():
    runs = Runs(on_change=lambda: None)
    yield runs
    runs.check_integrity()
    assert (runs.count, runs.usage, runs.taken) == (0, NOTHING, frozenset())


async def test_usage_counts_what_was_admitted_and_tells_changes():
    changes = []
    runs = Runs(on_change=lambda: changes.append((runs.usage, runs.taken)))
    async with runs.enter(claim(), COST) as run:
        assert runs.usage == NOTHING
        run.admitted()
        assert runs.usage == COST
        assert runs.taken == {claim()}
    assert changes == [(COST, {claim()}), (NOTHING, frozenset())]
    assert runs.counters.finished == 1


async def test_a_later_attempt_ends_the_earlier_one_and_waits_for_it(runs):
    log = []
    inside = asyncio.Event()

    async def earlier():
        async with runs.enter(claim(0), COST) as run, run.interruptible():
            try:
                inside.set()
                await asyncio.sleep(10)
            finally:
                await asyncio.sleep(0.01)
                log.append("earlier let go")

    task = asyncio.create_task(earlier())
    await inside.wait()
    async with runs.enter(claim(1), COST):
        log.append("later runs")
    with pytest.raises(LostRace) as caught:
        await task
    assert caught.value.reason == "SUPERSEDED"
    assert log == ["earlier let go", "later runs"]
    assert (runs.counters.refused, runs.counters.finished) == (1, 1)


async def test_an_earlier_attempt_that_comes_late_is_refused(runs):
    async with runs.enter(claim(3), COST):
        pass
    with pytest.raises(LostRace):
        async with runs.enter(claim(2), COST):
            pass
    async with runs.enter(claim(2, "another request"), COST):
        pass


async def test_the_same_attempt_twice_is_refused_while_it_runs(runs):
    async with runs.enter(claim(), COST):
        with pytest.raises(LostRace) as caught:
            async with runs.enter(claim(), COST):
                pass
        assert caught.value.reason == "DUPLICATE"


async def test_of_two_later_attempts_that_wait_only_the_latest_runs(runs):
    async def attempt(number: int) -> int:
        async with runs.enter(claim(number), COST) as run, run.interruptible():
            await asyncio.sleep(0.02)
            return number

    tasks = []
    for number in range(3):
        tasks.append(asyncio.create_task(attempt(number)))
        await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [LostRace, LostRace, int]


async def test_an_ended_run_tells_whoever_reads_its_stream(runs):
    told = []
    async with runs.enter(claim(), COST) as run:
        run.end(InternalError("the engine failed"))
        run.end(InternalError("a second error changes nothing"))
        run.when_ended(told.append)
        with pytest.raises(InternalError, match="the engine failed"):
            async with run.interruptible():
                pytest.fail("an ended run does not start")
    assert [error.message for error in told] == ["the engine failed"]


async def test_a_timeout_of_the_work_itself_is_not_taken_for_an_end(runs):
    async with runs.enter(claim(), COST) as run:
        with pytest.raises(TimeoutError):
            async with run.interruptible(), asyncio.timeout(0):
                await asyncio.sleep(1)


async def test_closed_refuses_new_runs_and_waits_for_those_that_run():
    runs = Runs(on_change=lambda: None)
    async with runs.enter(claim(), COST):
        runs.close(Unavailable("the worker is draining"))
        with pytest.raises(Unavailable):
            async with runs.enter(claim(0, "another"), COST):
                pass
        waiting = asyncio.create_task(runs.wait_empty())
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 1)
    runs.check_integrity()


async def test_targets_and_prompts_count_as_long_as_runs_hold_room(runs):
    async with (
        runs.enter(claim(0, "one"), COST, 0.5) as one,
        runs.enter(claim(0, "two"), COST, 0.2) as two,
        runs.enter(claim(0, "three"), COST) as three,
    ):
        assert runs.itl_target_s is None
        three.admitted(PromptWork(7, 3))
        assert runs.itl_target_s is None
        one.admitted()
        two.admitted(PromptWork(5, 0))
        assert runs.itl_target_s == 0.2
        assert runs.unstarted_prompts == [PromptWork(5, 0), PromptWork(7, 3)]
        three.started()
        assert runs.unstarted_prompts == [PromptWork(5, 0)]
    assert runs.itl_target_s is None
    assert runs.unstarted_prompts == []


async def test_growing_is_told():
    changes = []
    runs = Runs(on_change=lambda: changes.append(runs.usage))
    async with runs.enter(claim(), COST) as run:
        run.admitted()
        run.grow(36)
    assert changes == [COST, Usage(1, 36), NOTHING]


async def test_a_drain_is_told_to_those_who_asked_for_it(runs):
    told = []
    async with (
        runs.enter(claim(0, "one"), COST) as one,
        runs.enter(claim(0, "two"), COST),
    ):
        one.when_draining(lambda: told.append("too early"))
        one.when_draining(lambda: told.append("one"))
        runs.drain_all()
    assert told == ["one"]


async def test_what_goes_on_elsewhere_has_not_finished_here(runs):
    async with runs.enter(claim(), COST) as run:
        run.moved = True
    assert (runs.counters.finished, runs.counters.failed) == (0, 0)
