"""Chooses how to read from a peer: by NIXL where both sides have it, else as a byte stream.

Nobody waits for NIXL: it takes a second to come up on both sides, and until then, and for a
while after it failed, the stream does the work.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from baton import errors
from baton.naming import BlobName
from services.transfer.peers.nixl_reader import NixlReader
from services.transfer.peers.reader import PeerReader, Piece

log = logging.getLogger(__name__)

_AGAIN_S = 30.0
_SILENT_S = 0.5
"""Whoever gives a read up after that long without a piece does so because of the silence."""


@dataclass(slots=True)
class _Way:
    """How far NIXL is with one peer."""

    connecting: asyncio.Task[None]
    failed_at: float | None = None


class ChoosingReader:
    """A PeerReader that chooses. Belongs to one event loop."""

    def __init__(self, stream: PeerReader, nixl: NixlReader) -> None:
        self._stream = stream
        self._nixl = nixl
        self._ways: dict[str, _Way] = {}

    async def read(self, source: str, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        """See PeerReader."""
        left = dict.fromkeys(names)
        if self._ready(source):
            loop = asyncio.get_running_loop()
            asked = loop.time()
            try:
                async with aclosing(self._nixl.read(source, names)) as pieces:
                    async for piece in pieces:
                        if piece.offset + len(piece.data) == piece.size:
                            left.pop(piece.name, None)
                        yield piece
                        asked = loop.time()
                return
            except errors.BatonError as error:
                log.warning("going on without NIXL: %s", error)
                self._ways[source].failed_at = loop.time()
            except asyncio.CancelledError:
                if loop.time() - asked > _SILENT_S:
                    self._ways[source].failed_at = loop.time()
                raise
        async with aclosing(self._stream.read(source, tuple(left))) as pieces:
            async for piece in pieces:
                yield piece

    def _ready(self, source: str) -> bool:
        now = asyncio.get_running_loop().time()
        way = self._ways.get(source)
        if way is not None and way.failed_at is not None and now > way.failed_at + _AGAIN_S:
            way = None
        if way is None:
            connecting = asyncio.create_task(self._connect(source))
            way = self._ways[source] = _Way(connecting)
        return way.failed_at is None and way.connecting.done()

    async def _connect(self, source: str) -> None:
        try:
            await self._nixl.connect(source)
        except errors.BatonError as error:
            log.info("no NIXL to %s: %s", source, error)
            self._ways[source].failed_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """See PeerReader."""
        connecting = [way.connecting for way in self._ways.values() if not way.connecting.done()]
        for task in connecting:
            task.cancel()
        if connecting:
            await asyncio.wait(connecting)
        await self._nixl.close()
        await self._stream.close()
