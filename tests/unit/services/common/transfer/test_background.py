import asyncio
import logging

import pytest

from baton import errors
from services.common.transfer.background import Background


async def test_work_goes_on_when_who_waits_is_cancelled() -> None:
    background, done = Background(), asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.set()

    async def caller() -> None:
        await asyncio.shield(background.spawn(work()))

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    await background.close(5)
    assert done.is_set()


async def test_closing_has_bounded_patience() -> None:
    background = Background()
    stuck = background.spawn(asyncio.sleep(60))
    async with asyncio.timeout(5):
        await background.close(0.01)
    assert stuck.cancelled()


async def test_failures_are_seen_and_bugs_are_loud(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()

    async def fail(error: Exception) -> None:
        raise error

    background.spawn(fail(errors.Unavailable("away")))
    background.spawn(fail(ValueError("a bug")))
    await asyncio.sleep(0.01)
    loud = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(loud) == 1
    await background.close(1)
