"""A PeerReader that does to pieces what networks and dying hosts do. Seeded."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from baton import errors
from baton.naming import BlobName
from services.transfer.peers.reader import PeerReader, Piece

FAULTS = ("delay", "drop", "truncate", "corrupt", "repeat", "swap", "foreign", "grow", "end",
          "die", "crash", "hang")  # fmt: skip


class FaultyReader:
    """Wraps a reader; each piece suffers one of `faults` with probability `rate`."""

    def __init__(
        self, inner: PeerReader, seed: int, rate: float = 0.1, faults: Sequence[str] = FAULTS
    ) -> None:
        self.rate = rate
        self.suffered: list[str] = []
        self._inner = inner
        self._random = random.Random(seed)
        self._faults = faults

    async def read(self, source: str, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        async with aclosing(self._inner.read(source, names)) as pieces:
            async for piece in pieces:
                fault = ""
                if self._random.random() < self.rate:
                    fault = self._random.choice(self._faults)
                    self.suffered.append(fault)
                if fault == "end":
                    return
                for one in await self._changed(piece, fault):
                    yield one

    async def _changed(self, piece: Piece, fault: str) -> list[Piece]:
        data = bytes(piece.data)
        match fault:
            case "delay":
                await asyncio.sleep(self._random.random() * 0.2)
            case "hang":
                await asyncio.sleep(3600)
            case "die":
                raise errors.Unavailable("died")
            case "crash":
                raise RuntimeError("a bug in a reader")
            case "drop":
                return []
            case "truncate":
                return [replace(piece, data=data[: len(data) // 2])]
            case "corrupt":
                place = self._random.randrange(len(data))
                flipped = bytes([data[place] ^ 1])
                return [replace(piece, data=data[:place] + flipped + data[place + 1 :])]
            case "repeat":
                return [piece, piece]
            case "swap":
                return [replace(piece, offset=piece.offset + len(data)), piece]
            case "foreign":
                return [replace(piece, name=BlobName(self._random.randbytes(16))), piece]
            case "grow":
                return [replace(piece, size=1 << 50)]
        return [piece]

    async def close(self) -> None:
        await self._inner.close()
