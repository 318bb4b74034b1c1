"""By what other hosts are read, where that depends on who may listen."""

import pytest

from services.common.security import PLAIN, Security
from services.transfer.peers.host import wants_nixl
from services.transfer.settings import TransferSettings

ENCRYPTED = Security(ca=b"a CA")


@pytest.mark.parametrize(
    ("transport", "security", "wanted"),
    [
        ("auto", PLAIN, True),
        ("auto", ENCRYPTED, False),
        ("nixl", ENCRYPTED, True),
        ("nixl", PLAIN, True),
        ("grpc", PLAIN, False),
    ],
)
def test_nixl_encrypts_nothing_and_must_be_asked_for_by_name(transport, security, wanted):
    settings = TransferSettings(_cli_parse_args=[], peer_transport=transport)
    assert wants_nixl(settings, security) is wanted
