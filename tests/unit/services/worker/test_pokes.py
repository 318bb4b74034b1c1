"""A signal passes at once, then at most once a period, and the last one always passes."""

import asyncio

from services.worker.pokes import Pokes


async def test_the_first_passes_at_once_and_the_others_as_one():
    loop, passed = asyncio.get_running_loop(), []
    pokes = Pokes(lambda: passed.append(loop.time()), 0.05)
    began = loop.time()
    for _ in range(100):
        pokes.poke()
    assert len(passed) == 1
    await asyncio.sleep(0.12)
    assert len(passed) == 2
    assert passed[1] - began >= 0.049
    pokes.poke()
    assert len(passed) == 3


async def test_closing_forgets_what_is_held_back():
    passed = []
    pokes = Pokes(lambda: passed.append(None), 0.02)
    pokes.poke()
    pokes.poke()
    pokes.close()
    await asyncio.sleep(0.05)
    assert len(passed) == 1
