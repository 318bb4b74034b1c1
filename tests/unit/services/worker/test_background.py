"""Work goes on when its caller is cancelled; failures are logged."""

import asyncio

import pytest

from services.worker.background import Background


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
    await background.wait_empty(1)
    assert done.is_set()
    assert len(background) == 0


async def test_complete_raises_what_the_work_raises():
    async def work():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Background().complete(work())


async def test_a_failure_that_nobody_awaits_is_logged(caplog):
    background = Background()

    async def work():
        raise ValueError("broken")

    background.spawn(work())
    await background.wait_empty(1)
    await asyncio.sleep(0)
    assert "broken" in caplog.text


async def test_waiting_has_a_deadline():
    background = Background()
    task = background.spawn(asyncio.sleep(10))
    await background.wait_empty(0.01)
    assert not task.done()
    task.cancel()
