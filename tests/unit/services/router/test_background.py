import asyncio

from services.router.background import Background


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


async def test_failures_and_hangs_are_bounded_and_logged(caplog):
    background = Background(deadline_s=0.02)

    async def fail():
        raise ValueError("broken")

    background.spawn(fail(), "one")
    background.spawn(asyncio.Event().wait(), "two")
    async with asyncio.timeout(1):
        await background.settled()
    assert "one: ValueError: broken" in caplog.text
    assert "two: TimeoutError" in caplog.text
