"""A Redis for the tests of what waits and claims in it."""

from collections.abc import Iterator

import pytest

from baton.naming import new_id
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
def fleet() -> str:
    """The name of a new fleet."""
    return new_id("fleet")
