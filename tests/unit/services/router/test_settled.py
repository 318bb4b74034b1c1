"""Operations that end before a cancel does."""

import asyncio

import pytest

from services.router.settled import settled


async def test_the_result_and_the_error_come_through():
    async def answer():
        return 7

    async def fail():
        raise ValueError("no")

    assert await settled(answer()) == 7
    with pytest.raises(ValueError, match="no"):
        await settled(fail())


@pytest.mark.parametrize("error", [None, ValueError("lost")])
async def test_a_cancel_waits_for_the_end_however_often_it_comes(error):
    go = asyncio.Event()
    ended = False

    async def operation():
        nonlocal ended
        await go.wait()
        ended = True
        if error is not None:
            raise error

    task = asyncio.create_task(settled(operation()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended
