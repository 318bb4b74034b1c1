"""Whatever happens to a read: right bytes or none, in time, with nothing left behind."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from baton.naming import LeaseId
from services.transfer.peers.reader import PIECE_BYTES, PeerReader
from tests.support.faulty_reader import FAULTS, FaultyReader
from tests.support.transfer import SILENCE_S, Blobs, PeerBackend, ShmBackend, settled

Break = Callable[[int, float, tuple[str, ...]], FaultyReader]


class Faulty:
    """Two hosts; what one reads from the other can be made to suffer."""

    def __init__(self) -> None:
        self.reader: FaultyReader | None = None
        self.peers = PeerBackend(ShmBackend(), ShmBackend(self._wrap))

    def _wrap(self, inner: PeerReader) -> PeerReader:
        self.reader = FaultyReader(inner, 0, 0.0)
        return self.reader

    def suffer(self, seed: int, rate: float, faults: tuple[str, ...] = FAULTS) -> FaultyReader:
        assert self.reader is not None
        self.reader.rate = rate
        self.reader._random.seed(seed)
        self.reader._faults = faults
        return self.reader

    async def clean(self) -> None:
        await settled(self.peers, 1.0)
        async with asyncio.timeout(2):
            while any(status.leases for status in await self.peers.statuses()):
                await asyncio.sleep(0.02)


@pytest.fixture
async def faulty() -> AsyncIterator[Faulty]:
    faulty = Faulty()
    await faulty.peers.start()
    yield faulty
    await faulty.peers.stop()


def mixed_blobs() -> Blobs:
    blobs = Blobs(12, 4096)
    blobs.data |= Blobs(3, 2 * PIECE_BYTES + 5).data
    return blobs


@pytest.mark.parametrize("seed", range(12))
async def test_a_storm_of_faults(faulty: Faulty, seed: int) -> None:
    writer = await faulty.peers.client(16 << 20)
    readers = [await faulty.peers.reader() for _ in range(3)]
    blobs = mixed_blobs()
    await writer.publish(blobs.outgoing(), LeaseId("owner"), 5.0)
    faulty.suffer(seed, 0.12)
    for number in range(3):
        began = time.monotonic()
        leases = [LeaseId(f"{number}-{index}") for index in range(3)]
        calls = zip(readers, leases, strict=True)
        # Blobs.fetch asserts that what is said to be right is.
        await asyncio.gather(*(blobs.fetch(reader, lease, 1.5) for reader, lease in calls))
        assert time.monotonic() - began < 4.0
        await asyncio.gather(
            *(r.release_lease(lease) for r, lease in zip(readers, leases, strict=True))
        )
        await asyncio.sleep(0.25 * (number + 1))  # who failed is left alone for that long
    await writer.release_lease(LeaseId("owner"))
    await faulty.clean()
    faulty.suffer(seed, 0.0)
    async with asyncio.timeout(5):  # it may be left alone for a while
        while await blobs.fetch(readers[0], LeaseId("after")) != set(blobs.names):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_alone_on_every_piece(faulty: Faulty, fault: str) -> None:
    writer, reader = await faulty.peers.client(16 << 20), await faulty.peers.reader()
    blobs = mixed_blobs()
    await writer.publish(blobs.outgoing(), LeaseId("owner"), 5.0)
    suffered = faulty.suffer(1, 1.0, (fault,)).suffered
    began = time.monotonic()
    filled = await blobs.fetch(reader, LeaseId("reader"), 5.0)
    took = time.monotonic() - began
    assert suffered
    assert set(suffered) == {fault}
    if fault == "delay":
        assert filled == set(blobs.names)
    elif fault in ("repeat", "foreign"):  # between a blob's pieces they break it off
        assert filled >= set(blobs.names[:12])
    elif fault == "swap":
        assert (await faulty.peers.other.status()).peer_failures > 0
    else:
        assert filled == frozenset()
        assert took < 4.0
        assert (await faulty.peers.other.status()).peer_failures > 0
    await writer.release_lease(LeaseId("owner"))
    await reader.release_lease(LeaseId("reader"))
    await faulty.clean()


async def test_a_silent_host_is_given_up_before_a_patient_reader_gives_up(faulty: Faulty) -> None:
    writer, reader = await faulty.peers.client(), await faulty.peers.reader()
    blobs = Blobs(2, 4096)
    await writer.publish(blobs.outgoing(), LeaseId("owner"), 5.0)
    faulty.suffer(1, 1.0, ("hang",))
    began = time.monotonic()
    assert await blobs.fetch(reader, LeaseId("reader"), 10.0) == frozenset()
    assert SILENCE_S <= time.monotonic() - began < 6.0


async def test_a_silent_host_costs_its_silence_once(faulty: Faulty) -> None:
    writer, reader = await faulty.peers.client(), await faulty.peers.reader()
    blobs = Blobs(2, 4096)
    await writer.publish(blobs.outgoing(), LeaseId("owner"), 5.0)
    faulty.suffer(1, 1.0, ("hang",))
    assert await blobs.fetch(reader, LeaseId("reader"), 10.0) == frozenset()
    failures = (await faulty.peers.other.status()).peer_failures
    began = time.monotonic()
    assert await blobs.fetch(reader, LeaseId("reader"), 10.0) == frozenset()
    assert time.monotonic() - began < SILENCE_S * 0.8
    assert (await faulty.peers.other.status()).peer_failures == failures + 2
    faulty.suffer(1, 0.0)
    await asyncio.sleep(0.25)
    assert await blobs.fetch(reader, LeaseId("reader"), 10.0) == set(blobs.names)


async def test_an_impatient_reader_gives_up_before(faulty: Faulty) -> None:
    writer, reader = await faulty.peers.client(), await faulty.peers.reader()
    blobs = Blobs(2, 4096)
    await writer.publish(blobs.outgoing(), LeaseId("owner"), 5.0)
    faulty.suffer(1, 1.0, ("hang",))
    began = time.monotonic()
    assert await blobs.fetch(reader, LeaseId("reader"), 0.3) == frozenset()
    assert time.monotonic() - began < SILENCE_S
    await settled(faulty.peers, 0.5)


async def test_one_reader_s_deadline_does_not_end_what_another_waits_for(faulty: Faulty) -> None:
    writer = await faulty.peers.client(16 << 20)
    hasty, patient = await faulty.peers.reader(), await faulty.peers.reader()
    blobs = mixed_blobs()
    await writer.publish(blobs.outgoing(), LeaseId("owner"), 5.0)
    faulty.suffer(1, 1.0, ("delay",))
    few, all_of_them = await asyncio.gather(
        blobs.fetch(hasty, LeaseId("hasty"), 0.3), blobs.fetch(patient, LeaseId("patient"), 10.0)
    )
    assert len(few) < len(blobs.names)
    assert all_of_them == set(blobs.names)
    assert (await faulty.peers.other.status()).peer_blobs == len(blobs.names)
