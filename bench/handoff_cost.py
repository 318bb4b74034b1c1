"""Measures what fetching a handoff's KV costs: on one host, and between two by gRPC and by NIXL.

    python bench/handoff_cost.py [--rounds 7] [--blob-kib 256] [--mib 1 8 64]

Transfer services are processes with segments of their own; the worker that fetches is this one.
Each round publishes new blobs and fetches them once in every way, ways interleaved; medians.
The ways by which another host is read are ratios to the same host's in the same rounds.
NIXL is left out where it is not installed.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from baton.naming import BlobName, Incarnation, LeaseId, WorkerId, new_id
from services.common.transfer.client import IncomingBlob, OutgoingBlob, TransferClient
from services.transfer.peers import nixl

MIB = 1 << 20
SEGMENT_BYTES = 256 * MIB
DEADLINE_S = 30.0


@contextmanager
def transfer_service(transport: str) -> Iterator[str]:
    """A transfer service as a process; its address."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="bench-"))
    ready = directory / "ready"
    command = [sys.executable, "-m", "services.transfer", f"--segment-dir={directory}"]
    command += [f"--ready-file={ready}", f"--peer-transport={transport}", "--log-level=WARNING"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not ready.exists():
            if process.poll() is not None:
                sys.exit(f"the transfer service with {transport} ended at its start")
            time.sleep(0.02)
        yield ready.read_text()
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory)


@dataclass(frozen=True, slots=True)
class Way:
    """Who publishes, who fetches, and from where."""

    label: str
    writer: TransferClient
    reader: TransferClient
    source: str


async def attached(address: str, segment_bytes: int) -> TransferClient:
    identity = WorkerId(new_id("bench")), Incarnation(new_id("bench"))
    client = TransferClient(address, *identity, segment_bytes, lease_ttl_s=60.0)
    await client.start(30.0)
    if not client.attached:
        sys.exit(f"cannot attach to {address}")
    return client


async def fetch_seconds(way: Way, data: memoryview, blob_bytes: int, into: memoryview) -> float:
    """Publishes `data` under new names, then fetches it once."""
    cuts = range(0, len(data), blob_bytes)
    names = [BlobName(os.urandom(16)) for _ in cuts]
    lease = LeaseId(new_id("bench"))
    outgoing = [
        OutgoingBlob(name, data[start : start + blob_bytes], 0.1)
        for name, start in zip(names, cuts, strict=True)
    ]
    incoming = [
        IncomingBlob(name, into[start : start + blob_bytes])
        for name, start in zip(names, cuts, strict=True)
    ]
    await way.writer.publish(outgoing, lease, DEADLINE_S)
    began = time.perf_counter()
    filled = await way.reader.fetch(incoming, lease, DEADLINE_S, way.source)
    took = time.perf_counter() - began
    if len(filled) != len(names):
        sys.exit(f"{way.label}: {len(filled)} of {len(names)} blobs came")
    await way.writer.release_lease(lease)
    await way.reader.release_lease(lease)
    return took


async def ways_of(stack: ExitStack) -> list[Way]:
    """The same host, and another one by each transport that is here."""
    transports = ["grpc", *(["nixl"] if nixl.module_name() else [])]
    ways: list[Way] = []
    for transport in transports:
        owner, other = (stack.enter_context(transfer_service(transport)) for _ in range(2))
        writer = await attached(owner, SEGMENT_BYTES)
        if not ways:
            ways.append(Way("same host", writer, await attached(owner, MIB), ""))
        ways.append(Way(f"{transport}, other host", writer, await attached(other, MIB), owner))
    return ways


async def measure(rounds: int, blob_bytes: int, sizes: Sequence[int]) -> None:
    with ExitStack() as stack:
        ways = await ways_of(stack)
        print("KV MiB | way                 | median ms | GB/s | x same host")
        for mib in sizes:
            data, into = memoryview(os.urandom(mib * MIB)), memoryview(bytearray(mib * MIB))
            times: dict[str, list[float]] = {way.label: [] for way in ways}
            for number in range(rounds + 2):
                for way in ways:
                    took = await fetch_seconds(way, data, blob_bytes, into)
                    if number > 1:  # the first ones map pages and connect
                        times[way.label].append(took)
            base = statistics.median(times["same host"])
            for label, taken in times.items():
                middle = statistics.median(taken)
                rate = mib * MIB / middle / 1e9
                cost = f"{middle * 1e3:9.1f} | {rate:4.2f} | {middle / base:5.1f}"
                print(f"{mib:6} | {label:19} | {cost}")
        for way in ways:
            await way.writer.close()
            await way.reader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--blob-kib", type=int, default=256)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 8, 64])
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.rounds, arguments.blob_kib << 10, arguments.mib))


if __name__ == "__main__":
    main()
