"""Leases with a fake clock and transport, and over real gRPC."""

import asyncio

import pytest

from baton import errors
from baton.naming import LeaseId
from baton.v1 import transfer_pb2, transfer_pb2_grpc
from services.common import rpc
from services.common.background import Background
from services.router.channels import Channels
from services.router.leases import GrpcLeaseTransport, Lease, LeaseKeeper
from tests.support.router_parts import FakeTransfer, Windows


class Ticks:
    """A clock that a test moves on."""

    def __init__(self):
        self.waits = []
        self._next = asyncio.Event()

    async def pause(self, seconds):
        self.waits.append(seconds)
        await self._next.wait()
        self._next.clear()

    async def tick(self):
        self._next.set()
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def transfer():
    return FakeTransfer(Windows())


@pytest.fixture
async def background():
    return Background()


@pytest.fixture
async def ticks():
    return Ticks()


@pytest.fixture
async def keeper(transfer, background, ticks):
    keeper = LeaseKeeper(transfer, background, ttl_s=6.0, pause=ticks.pause)
    keeper.start()
    await asyncio.sleep(0)
    yield keeper
    await keeper.close()


async def test_every_lease_is_renewed_three_times_in_its_life(keeper, transfer, ticks):
    leases = [keeper.new("here"), keeper.new("there")]
    assert len({lease.lease_id for lease in leases}) == 2
    for round_number in (1, 2, 3):
        await ticks.tick()
        assert sorted(map(repr, transfer.renewed)) == sorted(map(repr, leases * round_number))
    assert set(ticks.waits) == {2.0}


async def test_released_lease_is_renewed_no_more(keeper, transfer, background, ticks):
    lease = keeper.new("here")
    keeper.release(lease)
    keeper.release(lease)
    assert len(keeper) == 0
    await ticks.tick()
    await background.settled()
    assert transfer.renewed == []
    assert transfer.released == [lease]


async def test_lease_can_be_taken_up_again(keeper, transfer, background, ticks):
    lease = keeper.new("here")
    keeper.release(lease)
    keeper.hold(lease)
    await ticks.tick()
    assert transfer.renewed == [lease]
    keeper.release(lease)
    await background.settled()
    assert transfer.released == [lease, lease]


async def test_lost_lease_is_no_error(keeper, transfer, background, ticks):
    transfer.error = errors.NotFound("expired")
    lost, other = keeper.new("here"), keeper.new("there")
    await ticks.tick()
    transfer.error = None
    await ticks.tick()
    assert transfer.renewed.count(lost) == transfer.renewed.count(other) == 2
    transfer.error = errors.Unavailable("gone")
    keeper.release(lost)
    await background.settled()
    assert len(keeper) == 1


async def test_services_that_left_for_good_are_not_remembered(transfer, background):
    keeper = LeaseKeeper(transfer, background, ttl_s=6.0)
    transfer.error = errors.Unavailable("gone")
    for number in range(1000):
        keeper.release(keeper.new(f"host-{number}"))
        await background.settled()
    assert len(keeper._away) <= 256


async def test_a_transfer_service_that_is_away_is_told_of_once(transfer, background, caplog):
    """Not once for each request: a busy router would fill its disk with it."""
    keeper = LeaseKeeper(transfer, background, ttl_s=6.0)
    for error, told in (
        (errors.Unavailable("gone"), 1),
        (None, 1),
        (errors.Unavailable("gone"), 2),
    ):
        transfer.error = error
        for _ in range(20):
            keeper.release(keeper.new("here"))
            await background.settled()
        lines = [line for line in caplog.text.splitlines() if "left to expire" in line]
        assert len(lines) == len(caplog.text.splitlines()) == told


async def test_silent_transfer_service_does_not_hold_up_a_release(transfer):
    transfer.windows.stop_at = 0
    background = Background(deadline_s=0.05)
    keeper = LeaseKeeper(transfer, background, ttl_s=6.0)
    keeper.release(keeper.new("here"))
    async with asyncio.timeout(1):
        await background.settled()
    assert transfer.released == []


class Transfers(transfer_pb2_grpc.TransferServiceServicer):
    def __init__(self):
        self.requests = []

    async def RenewLease(self, request, context):
        self.requests.append(request)
        return transfer_pb2.RenewLeaseResponse()

    async def ReleaseLease(self, request, context):
        self.requests.append(request)
        return transfer_pb2.ReleaseLeaseResponse()


async def test_over_grpc():
    service = Transfers()
    server = await rpc.serve(
        "127.0.0.1:0",
        [lambda s: transfer_pb2_grpc.add_TransferServiceServicer_to_server(service, s)],
        [],
    )
    channels = Channels(Background())
    transport = GrpcLeaseTransport(channels)
    lease = Lease(LeaseId("lease-1"), server.address)
    await transport.renew(lease, ttl_s=6.5, timeout_s=2)
    await transport.release(lease, timeout_s=2)
    renew, release = service.requests
    assert renew.lease_id == release.lease_id == "lease-1"
    assert renew.lease_ttl.ToMilliseconds() == 6500
    await channels.close()
    await server.stop(0)


async def test_a_failure_over_grpc_is_one_line():
    channels = Channels(Background())
    transport = GrpcLeaseTransport(channels)
    with pytest.raises(errors.Unavailable) as caught:
        await transport.release(Lease(LeaseId("lease-1"), "127.0.0.1:1"), timeout_s=2)
    assert len(str(caught.value).splitlines()) == 1
    await channels.close()
