"""A cluster for tests of what speaks to Kubernetes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kubernetes.aio.client import ApiClient

from tests.support import kubernetes
from tests.support.kubernetes import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with kubernetes.serving() as cluster:
        yield cluster


@pytest.fixture
async def api(cluster: Cluster, tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with kubernetes.client(cluster, tmp_path) as api:
        yield api
