"""How clients get in: keys in their calls, and never in plain text to others by accident."""

import grpc
import pytest

from baton import errors
from baton.client import AsyncClient, Client
from baton.tls import Access, Tls, is_loopback
from tests.support.certificates import Authority

KEY = "bk-secret"
METADATA = (("authorization", f"Bearer {KEY}"),)


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1:7600", True),
        ("localhost:7600", True),
        ("[::1]:7600", True),
        ("unix:/run/baton.sock", True),
        ("127.0.0.1:7600,127.0.0.2:7601", True),
        ("ipv4:127.0.0.1:7600", True),
        ("dns:///localhost:7600", True),
        ("127.0.0.1:7600,10.0.0.1:7600", False),
        ("dns:///baton.example:7600", False),
        ("localhost.example:7600", False),
        ("0.0.0.0:7600", False),
        ("10.0.0.1:7600", False),
    ],
)
def test_what_is_this_machine(address, here):
    assert is_loopback(address) is here


def test_a_key_is_metadata_of_every_call_unless_the_call_has_its_own():
    access = Access.of("127.0.0.1:1", KEY, None, insecure=False)
    assert access.metadata(None) == METADATA
    assert access.metadata({"x": "y"}) == (("x", "y"), *METADATA)
    own = {"authorization": "Bearer another"}
    assert access.metadata(own) == tuple(own.items())
    assert Access.of("127.0.0.1:1", None, None, insecure=False).metadata(None) == ()


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_key_does_not_leave_the_machine_in_plain_text(client):
    with pytest.raises(errors.InvalidRequest) as raised:
        client("10.0.0.1:7600", api_key=KEY)
    assert raised.value.field == "api_key"
    assert "insecure" in raised.value.message
    assert KEY not in raised.value.message
    Access.of("10.0.0.1:7600", KEY, None, insecure=True)
    Access.of("10.0.0.1:7600", KEY, Tls(), insecure=False)


@pytest.mark.parametrize("key", ["", "two words", "new\nline", "ümlaut"])
def test_what_is_no_key(key):
    with pytest.raises(errors.InvalidRequest) as raised:
        Client(api_key=key)
    assert raised.value.field == "api_key"


def test_a_key_is_text():
    with pytest.raises(TypeError, match="api_key"):
        Client(api_key=b"bk-x")


def test_files_of_certificates(tmp_path):
    own = Authority(tmp_path).issue("own")
    assert isinstance(Tls(own.ca, own.cert, own.key).credentials(), grpc.ChannelCredentials)
    assert isinstance(Tls().credentials(), grpc.ChannelCredentials)
    for tls, field in [
        (Tls(ca=tmp_path / "absent"), "tls.ca"),
        (Tls(cert=tmp_path / "absent", key=own.key), "tls.cert"),
        (Tls(cert=own.cert), "tls"),
        (Tls(key=own.key), "tls"),
    ]:
        with pytest.raises(errors.InvalidRequest) as raised:
            Client(tls=tls)
        assert raised.value.field == field
