import asyncio

import pytest

from baton.errors import DeadlineExceeded
from services.router.deadline import Deadline


def test_never():
    never = Deadline.after(None)
    assert never.remaining() is None
    assert never.remaining(at_most=3.0) == 3.0
    assert not never.passed(margin_s=1e9)


def test_remaining_is_capped_and_never_negative():
    soon = Deadline.after(10)
    assert 9 < soon.remaining() <= 10
    assert soon.remaining(at_most=2.0) == 2.0
    assert soon.passed(margin_s=11)
    assert not soon.passed()
    past = Deadline.after(-1)
    assert past.remaining() == 0
    assert past.passed()


async def test_bounding_names_the_phase():
    with pytest.raises(DeadlineExceeded, match="while testing"):
        async with Deadline.after(0.01).bounding("while testing"):
            await asyncio.Event().wait()


async def test_bounding_lets_other_timeouts_through():
    with pytest.raises(TimeoutError):
        async with Deadline.after(10).bounding("while testing"):
            raise TimeoutError
    async with Deadline().bounding("for ever"):
        await asyncio.sleep(0)
