"""What `baton up` may serve to whom, and what it tells its processes."""

from pathlib import Path

import pytest

from baton.local.guard import Guard
from baton.local.options import UpOptions
from baton.local.problem import Problem
from baton.local.state import Kind
from baton.local.up import prepare
from services.decode.settings import DecodeSettings
from services.gateway.settings import GatewaySettings
from services.router.settings import RouterSettings
from services.transfer.settings import TransferSettings

CERT, KEY, CA = Path("/c.pem"), Path("/c.key"), Path("/ca.pem")
TLS = Guard(Path("/keys"), CERT, KEY, CA, "baton.fleet")
SETTINGS = {
    Kind.ROUTER: RouterSettings,
    Kind.GATEWAY: GatewaySettings,
    Kind.DECODE: DecodeSettings,
    Kind.TRANSFER: TransferSettings,
}


def settings_of(guard, kind):
    """A process's settings from its flags."""
    model = ["--model=/m"] if kind in (Kind.ROUTER, Kind.DECODE) else []
    return SETTINGS[kind](_cli_parse_args=[*model, *guard.flags(kind)])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_loopback_is_open_by_default(host):
    Guard().check(host)
    assert [Guard().flags(kind) for kind in Kind] == [[] for _ in Kind]
    assert Guard().arguments() == []
    assert Guard().tls is None


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.1.2.3", "baton.example"])
def test_others_reach_it_only_by_tls_or_as_insecure(host):
    with pytest.raises(Problem) as raised:
        prepare(UpOptions(host=host), print)
    told = str(raised.value)
    for word in (f"--host {host}", "--tls-cert", "--insecure"):
        assert word in told
    Guard(insecure=True).check(host)
    TLS.check(host)


def test_certificates_come_with_keys_and_their_ca():
    for guard in (Guard(tls_cert=CERT), Guard(tls_cert=CERT, tls_key=KEY), Guard(tls_ca=CA)):
        with pytest.raises(Problem, match="only work together"):
            guard.check("127.0.0.1")


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_process_gets_the_certificate(kind):
    told = settings_of(TLS, kind)
    assert (told.tls_cert, told.tls_key, told.tls_ca) == (CERT, KEY, CA)
    assert told.tls_server_name == "baton.fleet"
    assert not told.insecure


def test_only_routers_get_keys_and_take_clients_without_certificates():
    router = settings_of(TLS, Kind.ROUTER)
    assert router.api_keys == "/keys"
    assert not router.tls_client_certs
    assert settings_of(TLS, Kind.GATEWAY).https_cert == CERT
    assert settings_of(TLS, Kind.GATEWAY).https_key == KEY


def test_only_what_others_reach_is_insecure():
    guard = Guard(insecure=True)
    insecure = {kind for kind in SETTINGS if settings_of(guard, kind).insecure}
    assert insecure == {Kind.ROUTER, Kind.GATEWAY}


def test_the_background_copy_gets_the_same_guard():
    assert set(TLS.arguments()) <= set(UpOptions(guard=TLS).arguments())
    assert "--insecure" in UpOptions(guard=Guard(insecure=True)).arguments()
