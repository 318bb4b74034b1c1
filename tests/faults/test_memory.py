"""failures.md, 27: memory of every process is flat over many requests.

Over 1,200 here, over 10,000 in `make soak`.
"""

import pytest

from tests.faults.memory import grown_over


@pytest.mark.timeout(240)
async def test_memory_is_flat_over_many_requests(single):
    assert not await grown_over(single, 1_200)
