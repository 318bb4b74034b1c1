"""Copies blobs into and out of segments, on threads of its own, with their checksums.

`numpy.copyto` and xxh3 release the GIL (assigning memoryview slices does not), so a copy never
stops the engine's thread. Knows nothing of names, leases or calls.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np
import xxhash

from services.common.transfer.place import (
    Bytes,
    Checksum,
    Place,
    read_generation,
    write_generation,
)

T = TypeVar("T")
J = TypeVar("J")


class ReadResult(Enum):
    """How reading a place went."""

    OK = "ok"
    STALE = "stale"
    """The place holds another generation, or none."""
    CORRUPT = "corrupt"
    """The place is whole, the bytes are not what was committed."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Bytes to put into a place."""

    place: Place
    data: memoryview


@dataclass(frozen=True, slots=True)
class ReadJob:
    """A place to copy, with the bytes' checksum, and where to."""

    place: Place
    checksum: Checksum
    into: memoryview


def write_blob(segment: Bytes, job: WriteJob) -> Checksum:
    """Writes one blob and returns its checksum; the place is readable afterwards."""
    source = np.frombuffer(job.data, dtype=np.uint8)
    write_generation(segment, job.place, 0)
    np.copyto(segment[job.place.payload], source)
    write_generation(segment, job.place, job.place.generation)
    return Checksum(xxhash.xxh3_64_intdigest(source.data))


def read_blob(segment: Bytes, job: ReadJob) -> ReadResult:
    """Copies one blob out and checks the copy; `job.into` is only of use after OK."""
    place, target = job.place, np.frombuffer(job.into, dtype=np.uint8)
    end = place.payload.stop
    if end > segment.size or target.size != place.size:
        return ReadResult.STALE
    if read_generation(segment, place) != place.generation:
        return ReadResult.STALE
    np.copyto(target, segment[place.payload])
    if read_generation(segment, place) != place.generation:
        return ReadResult.STALE
    if xxhash.xxh3_64_intdigest(target.data) != job.checksum:
        return ReadResult.CORRUPT
    return ReadResult.OK


class CopyThreads:
    """Runs copies, a few blobs at a time. Its methods belong to one event loop."""

    def __init__(self, threads: int, cores: frozenset[int] | None) -> None:
        """`cores`: where the threads may run; None: where the process may."""

        def pin() -> None:
            if cores:
                os.sched_setaffinity(threading.get_native_id(), cores)

        self._pool = ThreadPoolExecutor(threads, "baton-copy", pin)

    async def write(
        self, segment: Bytes, jobs: Sequence[WriteJob], deadline: float
    ) -> list[Checksum]:
        """Writes jobs in order; the checksums of those done by `deadline` (loop time)."""
        return await self._run(write_blob, segment, jobs, deadline)

    async def read(
        self, segment: Bytes, jobs: Sequence[ReadJob], deadline: float
    ) -> list[ReadResult]:
        """Reads jobs in order; the results of those done by `deadline` (loop time)."""
        return await self._run(read_blob, segment, jobs, deadline)

    async def _run(
        self,
        copy: Callable[[Bytes, J], T],
        segment: Bytes,
        jobs: Sequence[J],
        deadline: float,
    ) -> list[T]:
        """Returns, also when cancelled, only when no copy of `jobs` runs any more."""
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def run() -> list[T]:
            done: list[T] = []
            for job in jobs:
                if stop.is_set():
                    break
                done.append(copy(segment, job))
            return done

        running: Future[list[T]] = self._pool.submit(run)
        waiter = asyncio.wrap_future(running)
        try:
            await asyncio.wait([waiter], timeout=max(0.0, deadline - loop.time()))
        finally:
            stop.set()
            if not running.cancel():
                await settled(waiter)
        return [] if running.cancelled() else running.result()

    async def run(self, work: Callable[[], T]) -> T:
        """Runs `work`. Returns, also when cancelled, only when it no longer runs."""
        running = self._pool.submit(work)
        waiter = asyncio.wrap_future(running)
        try:
            await asyncio.wait([waiter])
        finally:
            if not running.cancel():
                await settled(waiter)
                waiter.exception()  # marks it as seen: who is cancelled never asks
        return running.result()

    def close(self) -> None:
        """Ends the threads; call it when no copy runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)


async def settled(future: asyncio.Future[T]) -> None:
    """Waits until `future` is done, however often this task is cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
