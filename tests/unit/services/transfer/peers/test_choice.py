"""NIXL or the stream: nobody waits for NIXL, and a failure of it costs nothing."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from baton import errors
from baton.naming import BlobName
from services.common.transfer.place import Checksum
from services.transfer.peers.choice import ChoosingReader
from services.transfer.peers.reader import Piece

A, B = BlobName(b"a" * 16), BlobName(b"b" * 16)


class Way:
    """One way of reading; NIXL's too, with its `connect`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[tuple[BlobName, ...]] = []
        self.connected = asyncio.Event()
        self.refuses = False
        self.fails_after: int | None = None
        self.silent = False

    async def connect(self, source: str) -> None:
        await self.connected.wait()
        if self.refuses:
            raise errors.Unavailable("no NIXL there")

    async def read(self, source: str, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        self.asked.append(tuple(names))
        for number, name in enumerate(names):
            if self.fails_after == number:
                raise errors.Unavailable("failed")
            if self.silent:
                await asyncio.sleep(60)
            yield Piece(name, 0, self.name.encode(), len(self.name), Checksum(0))

    async def close(self) -> None:
        pass


@pytest.fixture
def stream() -> Way:
    return Way("stream")


@pytest.fixture
def nixl() -> Way:
    return Way("nixl")


@pytest.fixture
async def reader(stream: Way, nixl: Way):
    reader = ChoosingReader(stream, nixl)  # type: ignore[arg-type]
    yield reader
    await reader.close()


async def ways(reader: ChoosingReader, *names: BlobName) -> dict[BlobName, str]:
    """By which way each name came."""
    async with aclosing(reader.read("peer", names)) as pieces:
        return {piece.name: bytes(piece.data).decode() async for piece in pieces}


async def connected(reader: ChoosingReader, nixl: Way) -> None:
    await ways(reader, A)
    nixl.connected.set()
    await asyncio.sleep(0.01)


async def test_the_stream_reads_until_nixl_is_up(reader: ChoosingReader, nixl: Way) -> None:
    assert await ways(reader, A) == {A: "stream"}
    assert await ways(reader, A) == {A: "stream"}
    nixl.connected.set()
    await asyncio.sleep(0.01)
    assert await ways(reader, A, B) == {A: "nixl", B: "nixl"}


async def test_a_peer_without_nixl_is_read_by_stream(reader: ChoosingReader, nixl: Way) -> None:
    nixl.refuses = True
    await connected(reader, nixl)
    assert await ways(reader, A) == {A: "stream"}
    assert nixl.asked == []


async def test_what_nixl_did_not_bring_the_stream_does(
    reader: ChoosingReader, nixl: Way, stream: Way
) -> None:
    await connected(reader, nixl)
    nixl.fails_after = 1
    assert await ways(reader, A, B) == {A: "nixl", B: "stream"}
    assert stream.asked[-1] == (B,)
    assert await ways(reader, A) == {A: "stream"}  # and for a while
    assert len(nixl.asked) == 1


async def test_silence_counts_as_failure_and_a_reader_that_leaves_does_not(
    reader: ChoosingReader, nixl: Way
) -> None:
    await connected(reader, nixl)
    nixl.silent = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ways(reader, A)
    nixl.silent = False
    async with aclosing(reader.read("peer", (A, B))) as pieces:
        await anext(pieces)
    assert await ways(reader, A) == {A: "nixl"}
    nixl.silent = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.6):
            await ways(reader, A)
    assert await ways(reader, A) == {A: "stream"}
