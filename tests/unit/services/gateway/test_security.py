"""The gateway keeps keys and prompts off plain networks on both of its sides."""

import pytest

from services.gateway.security import https_options, router_tls
from services.gateway.settings import GatewaySettings
from tests.support.certificates import FLEET_NAME, Authority


def settings(**values):
    return GatewaySettings(_cli_parse_args=[], **values)


def test_loopback_is_plain_by_default():
    assert https_options(settings()) == {}
    assert router_tls(settings()) is None


def test_plain_http_is_not_served_to_others():
    with pytest.raises(OSError, match="--https-cert and --https-key, or --insecure"):
        https_options(settings(address="0.0.0.0:8000"))
    assert https_options(settings(address="0.0.0.0:8000", insecure=True)) == {}
    own = {"https_cert": "/c.pem", "https_key": "/c.key"}
    told = https_options(settings(address="0.0.0.0:8000", **own))
    assert {name: str(path) for name, path in told.items()} == {
        "ssl_certfile": "/c.pem",
        "ssl_keyfile": "/c.key",
    }


@pytest.mark.parametrize("half", ["https_cert", "https_key"])
def test_half_a_certificate_is_none(half):
    with pytest.raises(OSError, match="only work together"):
        https_options(settings(**{half: "/c.pem"}))


def test_routers_elsewhere_are_not_called_in_plain_text(tmp_path):
    elsewhere = {"router": "dns:///baton-router:7600"}
    with pytest.raises(OSError, match="--tls-ca, or --insecure"):
        router_tls(settings(**elsewhere))
    assert router_tls(settings(**elsewhere, insecure=True)) is None
    ca = Authority(tmp_path).ca
    tls = router_tls(settings(**elsewhere, tls_ca=ca, tls_server_name=FLEET_NAME))
    assert tls is not None
    assert (tls.ca, tls.cert, tls.server_name) == (ca, None, FLEET_NAME)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(OSError, match=r"absent\.pem"):
        router_tls(settings(tls_ca=tmp_path / "absent.pem"))
