"""Work goes on when its caller is cancelled; it is bounded; failures are logged."""

import asyncio
import logging

import pytest

from baton import errors
from services.common.background import Background


async def fail(error: Exception) -> None:
    raise error


async def test_work_goes_on_when_its_starter_is_cancelled():
    background, done = Background(), []

    async def give_back():
        await asyncio.sleep(0.01)
        done.append(True)

    async def starter():
        background.spawn(give_back(), "give back")
        await asyncio.Event().wait()

    task = asyncio.create_task(starter())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await background.settled()
    assert done
    assert len(background) == 0


async def test_complete_outlives_its_caller():
    background, done = Background(), asyncio.Event()

    async def work():
        await asyncio.sleep(0.02)
        done.set()

    caller = asyncio.create_task(background.complete(work()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert len(background) == 1
    await background.settled(1)
    assert done.is_set()
    assert len(background) == 0


async def test_complete_answers_with_what_the_work_does():
    async def work():
        return 7

    assert await Background().complete(work()) == 7
    with pytest.raises(ValueError, match="broken"):
        await Background().complete(fail(ValueError("broken")))


async def test_settled_waits_for_what_the_work_spawned_too():
    background, done = Background(), []

    async def second():
        await asyncio.sleep(0.01)
        done.append(True)

    async def first():
        background.spawn(second())

    background.spawn(first())
    await background.settled()
    assert done


async def test_waiting_has_a_deadline_and_cancels_nothing():
    background = Background()
    task = background.spawn(asyncio.sleep(10))
    await background.settled(0.01)
    assert not task.done()
    task.cancel()


async def test_closing_has_bounded_patience():
    background = Background()
    stuck = background.spawn(asyncio.sleep(60))
    async with asyncio.timeout(5):
        await background.close(0.01)
    assert stuck.cancelled()
    assert len(background) == 0


async def test_failures_and_hangs_are_bounded_and_logged(caplog):
    background = Background(deadline_s=0.02)
    background.spawn(fail(ValueError("broken")), "one")
    background.spawn(asyncio.Event().wait(), "two")
    async with asyncio.timeout(1):
        await background.settled()
    assert "one: ValueError: broken" in caplog.text
    assert "two: TimeoutError" in caplog.text


@pytest.mark.parametrize(("level", "seen"), [(logging.WARNING, True), (logging.DEBUG, False)])
async def test_faults_of_others_are_as_loud_as_wished_and_bugs_always(caplog, level, seen):
    caplog.set_level(logging.INFO)
    background = Background(fault_level=level)
    background.spawn(fail(errors.Unavailable("away")))
    background.spawn(fail(ValueError("a bug")))
    await background.settled()
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(loud) == 1
    assert "a bug" in loud[0]
    assert ("away" in caplog.text) is seen
