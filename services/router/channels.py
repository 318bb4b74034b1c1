"""gRPC channels to workers and transfer services, one per address.

Knows nothing of what is called over them.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from services.common import rpc
from services.common.background import Background

Connect = Callable[[str], grpc.aio.Channel]
"""Opens a channel to an address."""


@dataclass(slots=True)
class _Entry:
    channel: grpc.aio.Channel
    users: int = 0


class Channels:
    """Open channels, the least recently used first.

    A fleet whose workers come and go leaves addresses behind that no one will call again:
    beyond `keep` channels, those that are not in use are closed.
    """

    def __init__(
        self, background: Background, keep: int = 128, connect: Connect = rpc.channel
    ) -> None:
        self._background = background
        self._keep = keep
        self._connect = connect
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def use(self, address: str) -> Iterator[grpc.aio.Channel]:
        """The channel to `address`, open at least until the block ends."""
        entry = self._entries.get(address)
        if entry is None:
            entry = self._entries[address] = _Entry(self._connect(address))
        self._entries.move_to_end(address)
        entry.users += 1
        try:
            yield entry.channel
        finally:
            entry.users -= 1
            if len(self._entries) > self._keep:
                self._retire(len(self._entries) - self._keep)

    async def close(self) -> None:
        """Closes every channel, ending the calls on it."""
        while self._entries:
            _, entry = self._entries.popitem()
            await entry.channel.close()

    def _retire(self, excess: int) -> None:
        idle = [address for address, entry in self._entries.items() if entry.users == 0]
        for address in idle[:excess]:
            channel = self._entries.pop(address).channel
            self._background.spawn(channel.close(), f"close the channel to {address}")
