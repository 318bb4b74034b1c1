"""Measures copies into and out of shared memory, and what they do to a computing thread.

    python bench/transfer_copy.py [--rounds 5] [--seconds 0.7]

Part 1: GB/s of copy + checksum by block size, over a working set larger than the caches.
Part 2: the step times of a thread that computes like decode does (reading weights from memory,
batch 1) while blobs are published next to it: by a copy thread on another core, on the same
core, and, to compare, by one that holds the GIL.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import xxhash

from services.common.transfer.copying import ReadJob, ReadResult, WriteJob, read_blob, write_blob
from services.common.transfer.mapping import Mapping
from services.common.transfer.place import Bytes, Generation, Place, SegmentId, extent_bytes

SEGMENT_BYTES = 256 << 20
SIZES = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20]
LAYERS, WIDTH = 24, 1024
Publish = Callable[[Bytes, WriteJob], object]


def jobs_of(size: int) -> list[WriteJob]:
    """Jobs that fill the segment once, each from memory of its own."""
    step = extent_bytes(size)
    count = SEGMENT_BYTES // step
    source = memoryview(np.random.default_rng(0).bytes(count * size))
    return [
        WriteJob(
            Place(SegmentId("bench"), i * step, size, Generation(i + 1)),
            source[i * size : (i + 1) * size],
        )
        for i in range(count)
    ]


def gigabytes_per_second(work: Callable[[], object], total_bytes: int) -> float:
    began = time.perf_counter()
    work()
    return total_bytes / (time.perf_counter() - began) / 1e9


def measure_copies(directory: Path) -> None:
    print("block KiB | write, page faults | write | read   (GB/s, copy + xxh3)")
    for size in SIZES:
        writer, reader = new_segment(directory)
        jobs = jobs_of(size)
        total = len(jobs) * size

        def write(segment: Bytes = writer.bytes, jobs: Sequence[WriteJob] = jobs) -> None:
            for job in jobs:
                write_blob(segment, job)

        faulting = gigabytes_per_second(write, total)
        populated = max(gigabytes_per_second(write, total) for _ in range(3))
        into = memoryview(bytearray(total))
        reads = [
            ReadJob(job.place, write_blob(writer.bytes, job), into[i * size : (i + 1) * size])
            for i, job in enumerate(jobs)
        ]

        def read(segment: Bytes = reader.bytes, reads: Sequence[ReadJob] = reads) -> None:
            assert all(read_blob(segment, job) is ReadResult.OK for job in reads)

        read()
        out = max(gigabytes_per_second(read, total) for _ in range(3))
        print(f"{size >> 10:9} | {faulting:18.1f} | {populated:5.1f} | {out:5.1f}")


def new_segment(directory: Path) -> tuple[Mapping, Mapping]:
    """A fresh segment, mapped for writing and for reading."""
    path = directory / "segment"
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, SEGMENT_BYTES)
    writer, reader = Mapping(str(path), writable=True), Mapping(str(path), writable=False)
    writer.pin()
    reader.pin()
    return writer, reader


def publish_holding_the_gil(segment: Bytes, job: WriteJob) -> object:
    segment.data[job.place.payload] = job.data
    return xxhash.xxh3_64_intdigest(job.data)


class Publisher(threading.Thread):
    """Publishes at a steady rate until told to end: a prefill's blocks, say."""

    def __init__(
        self, segment: Bytes, publish: Publish, cores: set[int], niceness: int, rate: float
    ) -> None:
        super().__init__()
        self.jobs = jobs_of(512 << 10)
        self.segment, self.publish = segment, publish
        self.cores, self.niceness, self.rate = cores, niceness, rate
        self.ended = threading.Event()
        self.copied = 0

    def run(self) -> None:
        os.sched_setaffinity(threading.get_native_id(), self.cores)
        niceness = os.getpriority(os.PRIO_PROCESS, 0) + self.niceness
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        began = time.perf_counter()
        while not self.ended.is_set():
            batch = 16  # 8 MiB
            for i in range(batch):
                self.publish(self.segment, self.jobs[(self.copied + i) % len(self.jobs)])
            self.copied += batch
            due = began + self.copied * (512 << 10) / self.rate
            time.sleep(max(0.0, due - time.perf_counter()))


def step_times(seconds: float) -> list[float]:
    """Milliseconds of each step of a decode-like loop on this thread."""
    weights = [torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16) for _ in range(LAYERS)]
    x = torch.randn(1, WIDTH, dtype=torch.bfloat16)
    times: list[float] = []
    end = time.perf_counter() + seconds
    with torch.inference_mode():
        while (began := time.perf_counter()) < end:
            y = x
            for weight in weights:
                y = torch.nn.functional.linear(y, weight).tanh()
            times.append((time.perf_counter() - began) * 1e3)
    return times[5:]


CASES: list[tuple[str, Publish | None, str, int, float]] = [
    ("no publishing", None, "", 0, 0),
    ("1 GB/s, other core", write_blob, "other", 0, 1e9),
    ("1 GB/s, same core", write_blob, "same", 0, 1e9),
    ("1 GB/s, same core, nice 10", write_blob, "same", 10, 1e9),
    ("1 GB/s, other core, holding the GIL", publish_holding_the_gil, "other", 0, 1e9),
    ("flat out, other core", write_blob, "other", 0, 1e12),
]


def measure_jitter(directory: Path, rounds: int, seconds: float) -> None:
    """Prints the quietest of several rounds of each case, so that neighbours count little."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    places = {"same": {cores[0]}, "other": {cores[-1]}}
    mapping, _ = new_segment(directory)
    mapping.populate()
    os.sched_setaffinity(0, places["same"])
    found: dict[str, list[tuple[float, float, float]]] = {case[0]: [] for case in CASES}
    for _ in range(rounds):
        for label, publish, where, niceness, rate in CASES:
            publisher = None
            if publish is not None:
                publisher = Publisher(mapping.bytes, publish, places[where], niceness, rate)
                publisher.start()
            cuts = statistics.quantiles(step_times(seconds), n=100)
            copied = 0.0
            if publisher is not None:
                publisher.ended.set()
                publisher.join()
                copied = publisher.copied * (512 << 10) / seconds / 1e9
            found[label].append((cuts[49], cuts[98], copied))
    print("\nstep ms of a computing thread       | median |    p99 | GB/s")
    for label, results in found.items():
        median, p99, copied = (min(values) for values in zip(*results, strict=True))
        print(f"{label:35} | {median:6.2f} | {p99:6.2f} | {copied:4.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of part 2")
    parser.add_argument("--seconds", type=float, default=0.7, help="of each case in each round")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bench-") as directory:
        measure_copies(Path(directory))
        measure_jitter(Path(directory), arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
