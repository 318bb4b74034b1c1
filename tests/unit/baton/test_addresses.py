"""Addresses of processes."""

import pytest

from baton.addresses import bracketed


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("fd00::1:7601", "[fd00::1]:7601"),
        ("::1:7601", "[::1]:7601"),
        ("fe80::1%eth0:7601", "[fe80::1%eth0]:7601"),
        ("::ffff:10.0.0.1:7601", "[::ffff:10.0.0.1]:7601"),
        ("2001:db8:1:2:3:4:5:6:7610", "[2001:db8:1:2:3:4:5:6]:7610"),
    ],
)
def test_a_bare_ipv6_host_gets_its_brackets(address, expected):
    assert bracketed(address) == expected


@pytest.mark.parametrize(
    "address",
    ["", "[fd00::1]:7601", "10.0.0.1:7601", "worker-0:7601", "dns:///worker-0:7601", "unix:/a:1"],
)
def test_any_other_address_stays_as_it_is(address):
    assert bracketed(address) == address
