from collections.abc import AsyncIterator

import pytest

from baton.naming import LeaseId
from tests.support.transfer import BACKENDS, TransferBackend


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[TransferBackend]:
    backend = BACKENDS[request.param]()
    try:
        await backend.start()
        yield backend
        status = await backend.status()
        assert status.reservations == 0
    finally:
        await backend.stop()


@pytest.fixture
def lease() -> LeaseId:
    return LeaseId("lease-of-the-test")
