"""failures.md, 8: after hours idle a request works.

What idling does to a connection is that something in between forgets it: it then breaks at the
next byte, or swallows it. Proxies stand for that; keep-alives are what notices it meanwhile.
"""

import time

import pytest

from baton import _calls
from services.common import rpc
from tests.faults.load import Work, fresh, played

SOON = 6.0


@pytest.mark.parametrize("name", ["valkey", "transfer", "prefill-0", "decode-0"])
async def test_a_connection_that_broke_while_idle_costs_nothing(pairs, oracle, name):
    await played(pairs, Work.of([fresh(f"before {name}", 40, 4)], oracle))
    pairs.proxies[name].cut()
    work = Work.of([fresh(f"after {name} {i}", 40, 8, router=i) for i in range(6)], oracle)
    began = time.monotonic()
    await played(pairs, work)
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("name", ["valkey", "transfer", "prefill-0", "decode-0"])
async def test_a_connection_that_swallows_everything_is_given_up(pairs, oracle, name):
    """Half open: it stays, and nothing passes; the requests are served all the same."""
    work = Work.of([fresh(f"swallowed {name} {i}", 40, 8, router=i) for i in range(6)], oracle)
    with pairs.proxies[name].stalled():
        began = time.monotonic()
        await played(pairs, work)
        assert time.monotonic() - began < 2 * SOON
    pairs.proxies[name].cut()
    await played(pairs, work)


def test_keepalives_are_sent_often_enough_and_without_calls():
    """Routers on the way forget a silent connection after a minute or more."""
    for options in (dict(rpc._CHANNEL_OPTIONS), dict(rpc._SERVER_OPTIONS)):
        assert options["grpc.keepalive_time_ms"] <= 30_000
        assert options["grpc.keepalive_timeout_ms"] <= 10_000
        assert options["grpc.keepalive_permit_without_calls"] == 1
        assert options["grpc.http2.max_pings_without_data"] == 0
    server, client = dict(rpc._SERVER_OPTIONS), dict(_calls.CHANNEL_OPTIONS)
    tolerated = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert tolerated <= dict(rpc._CHANNEL_OPTIONS)["grpc.keepalive_time_ms"]
    assert tolerated <= client["grpc.keepalive_time_ms"], "the server would call it abuse"
