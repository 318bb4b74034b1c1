import asyncio

import pytest

from services.common.gate import Gate


async def test_a_gate_that_closes_waits_for_all_that_are_inside():
    gate = Gate()
    with gate.one():
        with pytest.raises(ValueError, match="broken"), gate.one():
            raise ValueError("broken")
        assert (gate.open, gate.inside) == (True, 1)
        assert not await gate.close(0.01)
        closing = asyncio.create_task(gate.close(5.0))
        await asyncio.sleep(0)
        assert (gate.open, closing.done()) == (False, False)
    assert await closing
    assert gate.inside == 0
