from collections.abc import AsyncIterator

import pytest

from baton.naming import LeaseId
from tests.support.transfer import (
    BACKENDS,
    PEER_BACKENDS,
    PeerBackend,
    ShmBackend,
    TransferBackend,
    params,
)


@pytest.fixture(params=params(BACKENDS))
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[TransferBackend]:
    """Every one in turn."""
    async for one in running(BACKENDS[request.param]()):
        yield one


@pytest.fixture(params=params(PEER_BACKENDS))
async def peers(request: pytest.FixtureRequest) -> AsyncIterator[PeerBackend]:
    """Two hosts, by every way of reading from one to the other."""
    async for one in running(PEER_BACKENDS[request.param]()):
        yield one


@pytest.fixture
async def host() -> AsyncIterator[ShmBackend]:
    """A single host, for what only its own workers can see."""
    async for one in running(ShmBackend()):
        yield one


async def running(backend: TransferBackend) -> AsyncIterator[TransferBackend]:
    try:
        await backend.start()
        yield backend
        assert [
            status.reservations for status in await backend.statuses() if status.reservations
        ] == []
    finally:
        await backend.stop()


@pytest.fixture
def lease() -> LeaseId:
    return LeaseId("lease-of-the-test")
