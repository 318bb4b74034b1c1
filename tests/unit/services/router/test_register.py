import asyncio

import pytest

from baton import errors
from services.router.register import Register
from services.router.report import Outcome


async def test_counts_by_how_the_block_ends():
    register = Register(2)
    with register.request():
        assert register.running == 1
    for error in (ValueError, asyncio.CancelledError, GeneratorExit):
        with pytest.raises(error), register.request():
            raise error
    assert register.running == 0
    ended = register.counters.ended
    assert ended == {
        (Outcome.COMPLETED, ""): 1,
        (Outcome.CANCELLED, ""): 2,
        (Outcome.FAILED, "ValueError"): 1,
    }
    assert register.counters.count(Outcome.CANCELLED) == 2


async def test_targets_that_could_not_be_held_are_counted_by_themselves():
    register = Register(2)
    for reason in ("TARGET_MISSED", "TARGET_OUT_OF_REACH", "QUEUE_FULL"):
        with pytest.raises(errors.Exhausted), register.request():
            raise errors.Exhausted("no", reason=reason)
    assert register.counters.count(Outcome.REFUSED) == 2
    assert register.counters.count(Outcome.FAILED) == 1


async def test_refuses_past_the_limit():
    register = Register(1)
    with register.request():
        with pytest.raises(errors.Exhausted) as raised, register.request():
            pass
        assert raised.value.retry_after > 0
        assert register.running == 1
    with register.request():
        pass


async def test_close_waits_for_the_last_one():
    register = Register(2)
    with register.request():
        closing = asyncio.create_task(register.close(grace_s=5))
        await asyncio.sleep(0.01)
        assert not closing.done()
        with pytest.raises(errors.Unavailable), register.request():
            pass
    assert await closing


async def test_close_gives_up_after_the_grace():
    register = Register(1)
    with register.request():
        assert not await register.close(grace_s=0.01)
    assert await register.close(grace_s=0.01)
