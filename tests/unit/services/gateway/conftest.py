"""The gateway's app in the test's process, over real gRPC to a router that a test scripts."""

import httpx2
import pytest

from baton.client import AsyncClient
from services.common.gate import Gate
from services.gateway.app import make_app
from services.gateway.settings import GatewaySettings
from tests.support.fake_router import FakeRouter


@pytest.fixture
def router():
    with FakeRouter() as running:
        yield running


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
async def http(router, gate):
    """An HTTP client of the app."""
    settings = GatewaySettings(_cli_parse_args=[], max_body_bytes=64 * 1024)
    async with AsyncClient(router.address) as client:
        app = make_app(client, settings, gate)
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as found:
            found.app = app
            yield found
