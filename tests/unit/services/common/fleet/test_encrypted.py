"""Redis over TLS: `rediss://`, with certificates named in the URL. The embedded server speaks no
TLS, so something in front of it does."""

import asyncio
import ssl
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from baton.errors import Unavailable
from baton.naming import new_id
from services.common.fleet.store import FleetStore
from tests.support.certificates import Authority


@asynccontextmanager
async def tls_in_front_of(url, certificate):
    """Takes TLS clients that show a certificate of the same CA; yields host:port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate.ca)
    context.load_cert_chain(certificate.cert, certificate.key)
    context.verify_mode = ssl.CERT_REQUIRED
    ends: set[asyncio.Task[None]] = set()

    async def carry(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except (ssl.SSLError, ConnectionError):
            pass
        finally:
            writer.close()

    async def take(reader, writer):
        ends.add(asyncio.current_task())
        behind = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        await asyncio.gather(carry(reader, behind[1]), carry(behind[0], writer))

    server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.wait(ends, timeout=5)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


async def test_certificates_are_named_in_the_url(redis_server, authority, tmp_path):
    client, other = authority.issue("client"), Authority(tmp_path)
    shown = f"ssl_certfile={client.cert}&ssl_keyfile={client.key}"
    async with tls_in_front_of(redis_server.url, authority.issue("redis", "127.0.0.1")) as place:
        for url, works in [
            (f"rediss://{place}/0?ssl_ca_certs={authority.ca}&{shown}", True),
            (f"rediss://{place}/0?ssl_ca_certs={other.ca}&{shown}", False),
            (f"rediss://{place}/0?ssl_ca_certs={authority.ca}", False),
            (f"redis://{place}/0", False),
        ]:
            store = FleetStore(url, new_id("fleet"))
            if works:
                assert (await store.snapshot()).waiting == 0
            else:
                with pytest.raises(Unavailable):
                    await store.snapshot()
            await store.close()
