"""Keeps handoffs' blobs held in transfer services until someone has fetched them.

A lease comes to life when a prefill worker commits its first blobs under it, and ends when it
is released or nobody renewed it for its time to live. So neither renewing one that is not
there nor losing one is an error: a decode worker computes what it cannot fetch.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from baton import errors, naming
from baton.naming import LeaseId
from baton.v1 import transfer_pb2, transfer_pb2_grpc
from services.common.background import Background
from services.router.channels import Channels
from services.router.retry import Pause

log = logging.getLogger(__name__)

_RELEASE_S = 0.8
"""A release that takes longer is left to the lease's expiry."""
_MOST_AWAY = 256


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease and the transfer service (host:port) that it is on."""

    lease_id: LeaseId
    address: str


class LeaseTransport(Protocol):
    """How leases are renewed and released. Both may raise anything: nothing depends on them."""

    async def renew(self, lease: Lease, ttl_s: float, timeout_s: float) -> None: ...

    def release(self, lease: Lease, timeout_s: float) -> Coroutine[Any, Any, None]: ...


class LeaseKeeper:
    """The leases that this router's requests depend on. Not thread-safe."""

    def __init__(
        self,
        transport: LeaseTransport,
        background: Background,
        ttl_s: float,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._transport = transport
        self._background = background
        self._ttl_s = ttl_s
        self._period_s = ttl_s / 3
        self._pause = pause
        self._held: set[Lease] = set()
        self._away: set[str] = set()
        """Addresses at which the last release failed: each is told of once, not per request.
        Forgotten all together when they are many, since hosts leave for good."""
        self._renewing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Renews in the background, three times within each time to live."""
        self._renewing = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stops renewing; what is still held expires."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})

    def __len__(self) -> int:
        return len(self._held)

    def new(self, address: str) -> Lease:
        """A lease with a name of its own, held from now on."""
        lease = Lease(LeaseId(naming.new_id("lease")), address)
        self._held.add(lease)
        return lease

    def hold(self, lease: Lease) -> None:
        """Renews `lease` until it is released; holding it again changes nothing."""
        self._held.add(lease)

    def release(self, lease: Lease) -> None:
        """Ends `lease` in the background; nothing happens when it is not held."""
        if lease in self._held:
            self._held.remove(lease)
            name = f"release {lease.lease_id} at {lease.address}"
            self._background.spawn(self._release(lease), name)

    async def renew_all(self) -> None:
        """Renews every held lease once, all at a time."""
        await asyncio.gather(*(self._renew(lease) for lease in tuple(self._held)))

    async def _release(self, lease: Lease) -> None:
        try:
            await self._transport.release(lease, min(_RELEASE_S, self._period_s))
        except Exception as error:  # noqa: BLE001 - it expires
            level = logging.DEBUG if lease.address in self._away else logging.WARNING
            log.log(level, "leases at %s are left to expire: %s", lease.address, error)
            if len(self._away) >= _MOST_AWAY:
                self._away.clear()
            self._away.add(lease.address)
        else:
            self._away.discard(lease.address)

    async def _run(self) -> None:
        while True:
            await self._pause(self._period_s)
            await self.renew_all()

    async def _renew(self, lease: Lease) -> None:
        if lease not in self._held:
            return
        try:
            await self._transport.renew(lease, self._ttl_s, self._period_s)
        except Exception as error:  # noqa: BLE001 - the other leases must go on
            log.debug("%s was not renewed at %s: %s", lease.lease_id, lease.address, error)


class GrpcLeaseTransport:
    """Renews and releases at the transfer services."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def renew(self, lease: Lease, ttl_s: float, timeout_s: float) -> None:
        request = transfer_pb2.RenewLeaseRequest(lease_id=lease.lease_id)
        request.lease_ttl.FromNanoseconds(int(ttl_s * 1e9))
        with self._channels.use(lease.address) as channel, _one_line():
            await transfer_pb2_grpc.TransferServiceStub(channel).RenewLease(
                request, timeout=timeout_s
            )

    async def release(self, lease: Lease, timeout_s: float) -> None:
        request = transfer_pb2.ReleaseLeaseRequest(lease_id=lease.lease_id)
        with self._channels.use(lease.address) as channel, _one_line():
            await transfer_pb2_grpc.TransferServiceStub(channel).ReleaseLease(
                request, timeout=timeout_s
            )


@contextmanager
def _one_line() -> Iterator[None]:
    """gRPC's own errors print as many lines."""
    try:
        yield
    except grpc.RpcError as error:
        raise errors.from_rpc_error(error) from error
