"""What every process tells of itself: version, memory, start, and how late its event loop is."""

import asyncio
import contextlib
import platform
from importlib import metadata

import psutil

from services.common.telemetry.metric import Reading, Source, gauge, histogram
from services.common.telemetry.tally import SECONDS_BUCKETS, Tally

_LOOK_S = 0.25

BUILD = gauge(
    "baton_process_build_info", "Always 1; the labels tell.", "version", "python", stands=True
)
RESIDENT = gauge(
    "baton_process_resident_bytes", "Resident memory, shared memory included.", stands=True
)
START = gauge(
    "baton_process_start_time_seconds", "When it started, in seconds since 1970.", stands=True
)
LAG = histogram(
    "baton_process_loop_lag_seconds",
    "How late the event loop woke up, looked at four times a second.",
)
METRICS = (BUILD, RESIDENT, START, LAG)


class ProcessMetrics:
    """Looks at this process."""

    def __init__(self) -> None:
        self._lag = Tally(SECONDS_BUCKETS)
        self._process = psutil.Process()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Looks at the event loop's lag from now on."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Ends that."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    def source(self) -> Source:
        """Reads the metrics of this module."""
        return Source("process", self._read, METRICS)

    async def _read(self) -> list[Reading]:
        return [
            BUILD.at(1, _version(), platform.python_version()),
            RESIDENT.at(self._process.memory_info().rss),
            START.at(self._process.create_time()),
            LAG.at(self._lag),
        ]

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            self._lag.observe(max(0.0, loop.time() - due))


def _version() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("baton-serve")
    return "unknown"
