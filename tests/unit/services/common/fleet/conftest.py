"""A Redis for all tests of the fleet's state, and a fleet of its own for each."""

from collections.abc import AsyncIterator, Iterator

import pytest

from baton.naming import new_id
from services.common.fleet.store import FleetStore
from tests.support.redis import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server that the test may stop or freeze."""
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[FleetStore]:
    """A new fleet; what the test leaves there must add up."""
    store = FleetStore(redis_server.url, new_id("fleet"), timeout_s=10.0)
    yield store
    await store.check_integrity()
    await store.close()
