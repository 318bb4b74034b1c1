"""Who may talk to whom: certificates over real gRPC, and what is refused before that."""

import re

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton import errors
from baton.client import AsyncClient
from baton.tls import Tls
from services.common import rpc
from services.common.security import PLAIN, Security, check_bind
from services.common.settings import ServiceSettings
from tests.support.certificates import FLEET_NAME, Authority


def settings(**values):
    return ServiceSettings(_cli_parse_args=[], **values)


def of(certificate, client_certificates=True, **values):
    """A process's that uses a certificate."""
    files = {"tls_cert": certificate.cert, "tls_key": certificate.key, "tls_ca": certificate.ca}
    return Security.of(settings(**files, **values), client_certificates=client_certificates)


@pytest.fixture(scope="module")
def fleet_ca(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def mutual(fleet_ca):
    """A process's, with the fleet's name."""
    return of(fleet_ca.issue("one"), tls_server_name=FLEET_NAME)


async def answers(channel, timeout=2.0):
    """Whether a server takes this channel's calls."""
    async with channel:
        call = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=timeout
        )
        code = await call.code()
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    return code is grpc.StatusCode.OK


@pytest.fixture
async def server(mutual):
    running = await rpc.serve("127.0.0.1:0", [], [], mutual)
    yield running
    await running.stop(0)


async def test_processes_with_the_fleets_certificates_trust_each_other(server, mutual, fleet_ca):
    assert await answers(rpc.channel(server.address, mutual))
    another = of(fleet_ca.issue("two"), tls_server_name=FLEET_NAME)
    assert await answers(rpc.channel(server.address, another))


async def test_plain_text_is_not_answered(server):
    assert not await answers(rpc.channel(server.address, PLAIN))


async def reason(address, tls):
    """Why a client's call fails: only UNREACHABLE is not the server's own answer."""
    async with AsyncClient(address, tls=tls) as client:
        with pytest.raises(errors.BatonError) as raised:
            await client.model(timeout=5)
    return raised.value.reason


async def test_a_client_without_a_certificate_is_not_answered(server, fleet_ca):
    tls = Tls(ca=fleet_ca.ca, server_name=FLEET_NAME)
    assert await reason(server.address, tls) == "UNREACHABLE"


async def test_a_client_of_another_ca_is_not_answered(server, fleet_ca, other_ca):
    own, stranger = fleet_ca.issue("client"), other_ca.issue("stranger")
    assert await reason(server.address, own.tls) != "UNREACHABLE"
    tls = Tls(fleet_ca.ca, stranger.cert, stranger.key, FLEET_NAME)
    assert await reason(server.address, tls) == "UNREACHABLE"


async def test_a_server_of_another_ca_is_not_believed(server, other_ca):
    assert not await answers(rpc.channel(server.address, of(other_ca.issue("x", "127.0.0.1"))))


async def test_a_server_must_have_the_name_that_is_expected(server, fleet_ca):
    """Without a name for the fleet it is the address that a certificate must name."""
    assert not await answers(rpc.channel(server.address, of(fleet_ca.issue("three"))))
    addressed = of(fleet_ca.issue("four", "127.0.0.1"))
    running = await rpc.serve("127.0.0.1:0", [], [], addressed)
    assert await answers(rpc.channel(running.address, addressed))
    await running.stop(0)


async def test_a_router_may_take_clients_without_certificates(fleet_ca):
    security = of(fleet_ca.issue("router", "127.0.0.1"), client_certificates=False)
    running = await rpc.serve("127.0.0.1:0", [], [], security)
    assert await reason(running.address, Tls(ca=fleet_ca.ca)) != "UNREACHABLE"
    assert not await answers(rpc.channel(running.address, PLAIN))
    await running.stop(0)


async def test_a_certificate_without_a_ca_encrypts_what_is_served(fleet_ca):
    own = fleet_ca.issue("own", "127.0.0.1")
    security = Security.of(settings(tls_cert=own.cert, tls_key=own.key))
    assert not security.encrypts_calls
    running = await rpc.serve("127.0.0.1:0", [], [], security)
    assert not await answers(rpc.channel(running.address, security))
    assert await reason(running.address, Tls(ca=fleet_ca.ca)) != "UNREACHABLE"
    await running.stop(0)


def test_files_that_cannot_be_used_are_told_in_one_line(fleet_ca, other_ca, tmp_path):
    good, bad = fleet_ca.issue("good"), other_ca.issue("bad")
    broken = tmp_path / "broken.pem"
    broken.write_text("nonsense")
    absent = tmp_path / "absent.pem"
    whole = {"tls_cert": good.cert, "tls_key": good.key, "tls_ca": good.ca}
    for wrong, told in [
        ({"tls_cert": absent}, f"--tls-cert {absent}: "),
        ({"tls_key": absent}, f"--tls-key {absent}: "),
        ({"tls_ca": absent}, f"--tls-ca {absent}: "),
        ({"tls_cert": broken}, f"--tls-cert {broken} and --tls-key"),
        ({"tls_key": bad.key}, "its own, unencrypted key"),
        ({"tls_ca": broken}, f"--tls-ca {broken} has no certificates"),
        ({"tls_key": None}, "only work together"),
        ({"tls_cert": None}, "only work together"),
        ({"tls_cert": None, "tls_key": None}, "--tls-ca needs"),
    ]:
        with pytest.raises(OSError, match=re.escape(told)) as raised:
            Security.of(settings(**(whole | wrong)))
        assert "\n" not in str(raised.value)


def test_a_key_with_a_password_is_refused_and_not_asked_for(fleet_ca, tmp_path):
    good = fleet_ca.issue("locked")
    key = serialization.load_pem_private_key(good.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(OSError, match="unencrypted"):
        Security.of(settings(tls_cert=good.cert, tls_key=locked))


def test_no_text_has_a_private_key(mutual):
    assert "PRIVATE" not in repr(mutual)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:0", "127.9.9.9:1", "localhost:1", "[::1]:5", "unix:/run/baton"]
)
def test_loopback_may_be_plain(address):
    check_bind(address, encrypted=False, insecure=False)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.0.0.1:1", "baton.example:1", ":1"])
async def test_plain_text_is_not_served_to_others(address):
    with pytest.raises(OSError, match=f"^{re.escape(address)} ") as raised:
        await rpc.serve(address, [], [])
    told = str(raised.value)
    assert "--tls-cert and --tls-key" in told
    assert "--insecure" in told
    assert "\n" not in told
    check_bind(address, encrypted=True, insecure=False)
    check_bind(address, encrypted=False, insecure=True)


async def test_insecure_serves_plain_text_and_health_with_it():
    security = Security.of(settings(insecure=True))
    running = await rpc.serve("0.0.0.0:0", [], [], security)
    port = running.address.rpartition(":")[2]
    assert await answers(rpc.channel(f"127.0.0.1:{port}"))
    await running.stop(0)
