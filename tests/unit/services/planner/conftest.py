"""A cluster for tests of what speaks to Kubernetes, and a fleet's state in Redis."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kubernetes.aio.client import ApiClient

from baton.naming import new_id
from services.common.fleet.store import FleetStore
from tests.support import kubernetes
from tests.support.kubernetes import Cluster
from tests.support.redis import RedisServer


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with kubernetes.serving() as cluster:
        yield cluster


@pytest.fixture
async def api(cluster: Cluster, tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with kubernetes.client(cluster, tmp_path) as api:
        yield api


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[FleetStore]:
    store = FleetStore(redis_server.url, new_id("fleet"), timeout_s=10.0)
    yield store
    await store.close()
