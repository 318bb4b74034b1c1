"""Silent peers are left alone for a while, and forgiven at their first answer."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from baton import errors
from baton.naming import BlobName
from services.common.transfer.place import Checksum
from services.transfer.peers.reader import PEER_PAUSED, Piece
from services.transfer.peers.silence import SILENT_S, Silences, WaryReader
from tests.support.clock import FakeClock

A, B = BlobName(b"a" * 16), BlobName(b"b" * 16)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def silences(clock: FakeClock) -> Silences:
    return Silences(clock)


def test_pauses_grow_and_are_capped(silences: Silences, clock: FakeClock) -> None:
    lengths = []
    for _ in range(7):
        assert silences.try_now("peer")
        silences.failed("peer")
        began = clock.now
        while not silences.try_now("peer"):
            clock.advance(0.125)
        lengths.append(clock.now - began)
        clock.advance(10.0)
    assert lengths == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_hosts_that_left_for_good_are_not_remembered(silences: Silences, clock: FakeClock) -> None:
    for number in range(2000):
        silences.failed(f"host-{number}")
        clock.advance(60.0)
    assert sum(silences.has_failed(f"host-{number}") for number in range(2000)) < 20
    assert silences.has_failed("host-1999")


def test_reads_that_fail_together_count_once(silences: Silences, clock: FakeClock) -> None:
    for _ in range(5):
        silences.failed("peer")
    clock.advance(0.25)
    assert silences.try_now("peer")


def test_one_at_a_time_tries_after_a_pause(silences: Silences, clock: FakeClock) -> None:
    silences.failed("peer")
    clock.advance(0.25)
    assert [silences.try_now("peer") for _ in range(3)] == [True, False, False]
    clock.advance(0.25)  # whoever tried left without knowing
    assert silences.try_now("peer")


def test_an_answer_is_forgiveness(silences: Silences, clock: FakeClock) -> None:
    silences.failed("peer")
    assert silences.has_failed("peer")
    clock.advance(0.25)
    silences.try_now("peer")
    silences.answered("peer")
    assert not silences.has_failed("peer")
    assert all(silences.try_now("peer") for _ in range(3))
    silences.failed("peer")
    clock.advance(0.25)  # the first pause again
    assert silences.try_now("peer")


def test_each_source_for_itself(silences: Silences) -> None:
    silences.failed("one")
    assert (silences.try_now("one"), silences.try_now("two")) == (False, True)


class Peer:
    """Gives a piece for each name, fails, or says nothing; time passes while it is waited for."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.reads = 0
        self.fails = False
        self.silent_s = 0.0

    async def read(self, source: str, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        self.reads += 1
        if self.fails:
            raise errors.Unavailable("gone")
        for name in names:
            if self.silent_s:
                self.clock.advance(self.silent_s)
                await asyncio.Event().wait()
            yield Piece(name, 0, b"data", 4, Checksum(0))

    async def close(self) -> None:
        pass


@pytest.fixture
def peer(clock: FakeClock) -> Peer:
    return Peer(clock)


@pytest.fixture
def reader(peer: Peer, clock: FakeClock) -> WaryReader:
    return WaryReader(peer, clock)


async def read(reader: WaryReader, *names: BlobName) -> list[BlobName]:
    async with asyncio.timeout(0.01), aclosing(reader.read("peer", names)) as pieces:
        return [piece.name async for piece in pieces]


async def paused(reader: WaryReader) -> bool:
    try:
        await read(reader, A)
    except errors.Unavailable as error:
        return error.reason == PEER_PAUSED
    return False


async def test_who_answers_is_asked_always(reader: WaryReader, peer: Peer) -> None:
    for _ in range(3):
        assert await read(reader, A, B) == [A, B]
    assert peer.reads == 3


async def test_who_fails_is_not_asked_for_a_while(
    reader: WaryReader, peer: Peer, clock: FakeClock
) -> None:
    peer.fails = True
    with pytest.raises(errors.Unavailable, match="gone"):
        await read(reader, A)
    peer.fails = False
    assert await paused(reader)
    clock.advance(0.25)
    assert await read(reader, A) == [A]
    assert peer.reads == 2


async def test_who_was_given_up_for_silence_is_not_asked_for_a_while(
    reader: WaryReader, peer: Peer
) -> None:
    peer.silent_s = SILENT_S * 1.1
    with pytest.raises(TimeoutError):
        await read(reader, A)
    assert await paused(reader)
    assert peer.reads == 1


async def test_who_was_given_up_soon_is_not_blamed(reader: WaryReader, peer: Peer) -> None:
    peer.silent_s = SILENT_S * 0.9
    with pytest.raises(TimeoutError):
        await read(reader, A)
    peer.silent_s = 0.0
    assert await read(reader, A) == [A]


async def test_a_reader_that_takes_its_time_blames_nobody(
    reader: WaryReader, clock: FakeClock
) -> None:
    async with aclosing(reader.read("peer", (A, B))) as pieces:
        await anext(pieces)
        clock.advance(10 * SILENT_S)
    assert not await paused(reader)
