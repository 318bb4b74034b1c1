"""Connections to other hosts' transfer services, kept for a while between reads."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from baton.v1 import transfer_pb2_grpc
from services.common import rpc
from services.common.security import PLAIN, Security

_IDLE_S = 60.0


@dataclass(slots=True)
class _Connection:
    channel: grpc.aio.Channel
    users: int = 0
    last_used: float = 0.0


class Channels:
    """One channel to each address in use. Belongs to one event loop."""

    def __init__(self, security: Security = PLAIN) -> None:
        self._security = security
        self._connections: dict[str, _Connection] = {}

    @contextmanager
    def use(self, address: str) -> Iterator["transfer_pb2_grpc.TransferServiceAsyncStub"]:
        """The service at an address (host:port)."""
        connection = self._connections.get(address)
        if connection is None:
            channel = rpc.channel(address, self._security)
            connection = self._connections[address] = _Connection(channel)
        connection.users += 1
        try:
            yield transfer_pb2_grpc.TransferServiceStub(connection.channel)
        finally:
            connection.users -= 1
            connection.last_used = asyncio.get_running_loop().time()

    async def drop_idle(self) -> None:
        """Closes what was not used lately."""
        limit = asyncio.get_running_loop().time() - _IDLE_S
        for address, connection in list(self._connections.items()):
            if not connection.users and connection.last_used < limit:
                del self._connections[address]
                await connection.channel.close()

    async def close(self) -> None:
        """Closes all, with the calls that run."""
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.channel.close()
