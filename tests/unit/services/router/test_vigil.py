"""Waiting for a worker: as long as it lives, and no longer than patience lasts."""

import asyncio

import pytest

from baton import errors
from baton.policy.fleet import Role
from services.router.vigil import Vigil
from tests.support.router_parts import worker

DECODE = worker(Role.DECODE)


async def test_a_wait_that_ends_in_time():
    async with Vigil(DECODE, asyncio.Event()) as vigil:
        for _ in range(2):
            async with vigil.waiting(1.0):
                await asyncio.sleep(0)


async def test_patience_ends():
    async with Vigil(DECODE, asyncio.Event()) as vigil:
        with pytest.raises(errors.Unavailable, match=r"decode-0 was silent for 0\.01 s"):
            async with vigil.waiting(0.01):
                await asyncio.Event().wait()


async def test_a_worker_that_is_lost_while_it_is_waited_for():
    lost = asyncio.Event()
    async with Vigil(DECODE, lost) as vigil, asyncio.timeout(2):
        asyncio.get_running_loop().call_later(0.01, lost.set)
        with pytest.raises(errors.Unavailable, match="decode-0 is gone"):
            async with vigil.waiting():
                await asyncio.Event().wait()


async def test_a_worker_that_was_lost_before_is_not_waited_for():
    lost = asyncio.Event()
    async with Vigil(DECODE, lost) as vigil:
        async with vigil.waiting():
            pass
        lost.set()
        await asyncio.sleep(0)
        with pytest.raises(errors.Unavailable, match="is gone"):
            async with vigil.waiting(5.0):
                raise AssertionError("it waits")


async def test_others_timeouts_and_cancels_are_not_its_own():
    async with Vigil(DECODE, asyncio.Event()) as vigil:
        with pytest.raises(TimeoutError, match="another"):
            async with vigil.waiting(5.0):
                raise TimeoutError("another")

    async def wait():
        async with Vigil(DECODE, asyncio.Event()) as vigil, vigil.waiting(5.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
