import asyncio
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash

from services.common.transfer.copying import (
    CopyThreads,
    ReadJob,
    ReadResult,
    WriteJob,
    read_blob,
    write_blob,
)
from services.common.transfer.place import (
    HEADER_BYTES,
    Bytes,
    Checksum,
    Generation,
    Place,
    SegmentId,
    extent_bytes,
    read_generation,
    write_generation,
)

DATA = bytes(range(256)) * 3 + b"odd"
PLACE = Place(SegmentId("s"), 128, len(DATA), Generation(7))


@pytest.fixture
def segment() -> Bytes:
    return np.zeros(4096, dtype=np.uint8)


@pytest.fixture
def threads() -> Iterator[CopyThreads]:
    threads = CopyThreads(1, None)
    yield threads
    threads.close()


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def test_extents_hold_header_and_payload_aligned() -> None:
    assert [extent_bytes(size) for size in (1, 64, 65)] == [128, 128, 192]


def test_what_is_written_is_read_with_its_checksum(segment: Bytes) -> None:
    checksum = write_blob(segment, WriteJob(PLACE, memoryview(DATA)))
    assert checksum == xxhash.xxh3_64_intdigest(DATA)
    assert int.from_bytes(segment[128:136].tobytes(), "little") == 7
    assert segment[128 + HEADER_BYTES : 128 + HEADER_BYTES + 3].tolist() == [0, 1, 2]
    into = bytearray(len(DATA))
    assert read_blob(segment, ReadJob(PLACE, checksum, memoryview(into))) is ReadResult.OK
    assert into == DATA
    assert not segment[:128].any()
    assert not segment[PLACE.payload.stop :].any()


@pytest.mark.parametrize("found", [0, 6, 8])
def test_another_generation_is_stale(segment: Bytes, found: int) -> None:
    checksum = write_blob(segment, WriteJob(PLACE, memoryview(DATA)))
    write_generation(segment, PLACE, found)
    job = ReadJob(PLACE, checksum, memoryview(bytearray(len(DATA))))
    assert read_blob(segment, job) is ReadResult.STALE


@pytest.mark.parametrize("position", [0, len(DATA) // 2, len(DATA) - 1])
def test_a_flipped_bit_is_corrupt(segment: Bytes, position: int) -> None:
    checksum = write_blob(segment, WriteJob(PLACE, memoryview(DATA)))
    segment[PLACE.payload.start + position] ^= 1
    job = ReadJob(PLACE, checksum, memoryview(bytearray(len(DATA))))
    assert read_blob(segment, job) is ReadResult.CORRUPT


def test_a_place_that_cannot_be_is_stale_and_touches_nothing(segment: Bytes) -> None:
    into = bytearray(len(DATA))
    beyond = Place(SegmentId("s"), 4096 - 64, len(DATA), Generation(7))
    assert read_blob(segment, ReadJob(beyond, Checksum(0), memoryview(into))) is ReadResult.STALE
    short = ReadJob(PLACE, Checksum(0), memoryview(bytearray(5)))
    assert read_blob(segment, short) is ReadResult.STALE
    assert into == bytes(len(DATA))


async def test_threads_copy_in_order(segment: Bytes, threads: CopyThreads) -> None:
    places = [Place(SegmentId("s"), 128 * i, 64, Generation(i + 1)) for i in range(8)]
    payloads = [os.urandom(64) for _ in places]
    writes = [
        WriteJob(place, memoryview(data)) for place, data in zip(places, payloads, strict=True)
    ]
    checksums = await threads.write(segment, writes, after(5))
    assert checksums == [xxhash.xxh3_64_intdigest(data) for data in payloads]
    outputs = [bytearray(64) for _ in places]
    reads = [
        ReadJob(place, checksum, memoryview(into))
        for place, checksum, into in zip(places, checksums, outputs, strict=True)
    ]
    assert await threads.read(segment, reads, after(5)) == [ReadResult.OK] * 8
    assert outputs == payloads


async def test_a_deadline_ends_copying_between_blobs(threads: CopyThreads) -> None:
    segment = np.zeros(1 << 24, dtype=np.uint8)
    place = Place(SegmentId("s"), 0, (1 << 24) - 64, Generation(1))
    data = memoryview(bytes(place.size))
    done = await threads.write(segment, [WriteJob(place, data)] * 5_000, after(0.02))
    assert 0 < len(done) < 5_000
    assert read_generation(segment, place) == 1  # the last one was finished, not torn


async def test_cancelling_returns_only_when_nothing_is_copied_any_more(
    threads: CopyThreads,
) -> None:
    segment = np.zeros(1 << 26, dtype=np.uint8)
    place = Place(SegmentId("s"), 0, (1 << 26) - 64, Generation(1))
    for delay in (0.0, 0.001, 0.003, 0.01):
        write_generation(segment, place, 5)
        source = memoryview(bytes(place.size))
        job = WriteJob(place, source)
        task = asyncio.create_task(threads.write(segment, [job] * 1_000, after(60)))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # once more, while it waits for the copy
        with pytest.raises(asyncio.CancelledError):
            await task
        # While a copy runs the generation is 0: now none does, and none begins.
        at_return = read_generation(segment, place)
        assert at_return in (5, 1)
        await asyncio.sleep(0.005)
        assert read_generation(segment, place) == at_return


async def test_what_waits_in_the_queue_never_starts_after_its_cancellation(
    segment: Bytes, threads: CopyThreads
) -> None:
    gate = threading.Event()
    threads._pool.submit(gate.wait, 10)
    task = asyncio.create_task(
        threads.write(segment, [WriteJob(PLACE, memoryview(DATA))], after(60))
    )
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    await threads.write(segment, [], after(5))
    assert not segment.any()


async def test_threads_can_be_pinned() -> None:
    core = min(os.sched_getaffinity(0))
    pinned = CopyThreads(1, frozenset({core}))
    assert pinned._pool.submit(os.sched_getaffinity, 0).result(5) == {core}
    pinned.close()
    assert os.sched_getaffinity(0) >= {core}
