"""Chooses how to read from a peer: by NIXL where both sides have it, else as a byte stream.

Nobody waits for NIXL: it takes a second to come up on both sides, and until then, and for a
while after it failed, the stream does the work.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from baton import errors
from baton.naming import BlobName
from services.transfer.peers.nixl_reader import NixlReader
from services.transfer.peers.reader import PeerReader, Piece
from services.transfer.peers.silence import Silences, noticing

log = logging.getLogger(__name__)

_AGAIN_S = 30.0
"""How long a peer is read without NIXL after that failed."""


class ChoosingReader:
    """A PeerReader that chooses. Belongs to one event loop, which runs already."""

    def __init__(self, stream: PeerReader, nixl: NixlReader) -> None:
        self._stream = stream
        self._nixl = nixl
        self._clock = asyncio.get_running_loop().time
        self._failures = Silences(self._clock, _AGAIN_S, _AGAIN_S)
        self._connecting: dict[str, asyncio.Task[None]] = {}  # with those that are done

    async def read(self, source: str, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        """See PeerReader."""
        left = dict.fromkeys(names)
        if self._ready(source):
            reading = self._nixl.read(source, names)
            noticed = noticing(reading, source, self._failures, self._clock)
            try:
                async with aclosing(noticed) as pieces:
                    async for piece in pieces:
                        if piece.offset + len(piece.data) == piece.size:
                            left.pop(piece.name, None)
                        yield piece
                return
            except errors.BatonError as error:
                log.warning("going on without NIXL: %s", error)
        async with aclosing(self._stream.read(source, tuple(left))) as pieces:
            async for piece in pieces:
                yield piece

    def _ready(self, source: str) -> bool:
        connecting = self._connecting.get(source)
        if connecting is not None and not connecting.done():
            return False
        if not self._failures.try_now(source):
            return False
        if connecting is None or self._failures.has_failed(source):
            self._connecting[source] = asyncio.create_task(self._connect(source))
            return False
        return True

    async def _connect(self, source: str) -> None:
        try:
            await self._nixl.connect(source)
            self._failures.answered(source)
        except errors.BatonError as error:
            log.info("no NIXL to %s: %s", source, error)
            self._failures.failed(source)

    async def close(self) -> None:
        """See PeerReader."""
        connecting = [task for task in self._connecting.values() if not task.done()]
        for task in connecting:
            task.cancel()
        if connecting:
            await asyncio.wait(connecting)
        await self._nixl.close()
        await self._stream.close()
