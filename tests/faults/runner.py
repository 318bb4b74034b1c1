"""Runs a schedule over a cluster, and checks what its clients got and what it left behind."""

import asyncio
import collections
import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.checks import Expected, Oracle
from tests.faults.clients import Outcome, Watch, play
from tests.faults.schedules import PROXIED, Kind, Phase, Schedule, Step
from tests.support.cluster import MEBIBYTE, Cluster

_CLEAN_SECONDS = 15.0
"""A lease of a killed party ends by its time, and a hung call by its own."""
_END_SECONDS = 20.0
_DELAY_SECONDS = 0.05
_GROWTH = 1.25
_GROWTH_BYTES = 40 * MEBIBYTE
_SETTLING = 3
"""Schedules after which a process's memory is what it is compared with later."""


def fault_cluster(model: Path, run_dir: Path) -> Cluster:
    """Two of each, so that any one can fail, with proxies where schedules need them."""
    return Cluster(
        model,
        run_dir=run_dir,
        prefill=2,
        decode=2,
        routers=2,
        proxied=PROXIED,
        service_flags=["prefill:--max-step-tokens=40", "router:--lease-ttl-s=2"],
    )


def mend(cluster: Cluster) -> None:
    """Starts again whatever ended; does not wait for it."""
    for name in cluster.supervisor.started():
        if cluster.supervisor.child(name).exit_code() is not None:
            cluster.start(name)


class ScheduleFailed(AssertionError):
    """What went wrong in a schedule, with how to run it again."""


@dataclass
class Memory:
    """Resident bytes of processes, from when each had settled."""

    seen: collections.Counter[int] = field(default_factory=collections.Counter)
    settled: dict[int, int] = field(default_factory=dict)

    def grown(self, cluster: Cluster) -> list[str]:
        """Processes that take much more than they did."""
        found = []
        pids = {name: cluster.pids(name)[0] for name in cluster.supervisor.specs}
        for name, size in cluster.resident_bytes().items():
            pid = pids[name]
            self.seen[pid] += 1
            if self.seen[pid] == _SETTLING:
                self.settled[pid] = size
            before = self.settled.get(pid, size)
            if size > before * _GROWTH + _GROWTH_BYTES:
                found.append(f"{name} grew from {before >> 20} to {size >> 20} MiB")
        return found


@dataclass
class Runner:
    """Runs schedules one after the other; the cluster is whole and clean in between."""

    cluster: Cluster
    oracle: Oracle
    memory: Memory = field(default_factory=Memory)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    """What clients got, over all schedules."""

    async def run(self, schedule: Schedule) -> list[Outcome]:
        """Raises ScheduleFailed."""
        expected = self.oracle.expected_all(schedule.requests)
        outcomes = await _Play(self, schedule, expected).play()
        found = [
            f"request {index}: {problem}"
            for index, (got, right) in enumerate(zip(outcomes, expected, strict=True))
            for problem in self.oracle.problems(got, right, strict=schedule.survivable)
        ]
        found += self._leftovers()
        self.counts.update(outcome.what for outcome in outcomes)
        if found:
            lines = "\n".join(f"  {problem}" for problem in found)
            replay = f"replay it with: python -m tests.faults --seed {schedule.seed}"
            raise ScheduleFailed(f"{schedule}\nwent wrong:\n{lines}\n{replay}")
        return outcomes

    def _leftovers(self) -> list[str]:
        """What is not as it was before, once everything runs again."""
        try:
            self.cluster.assert_clean(_CLEAN_SECONDS)
        except Exception as error:  # noqa: BLE001 - reported with the schedule
            return [f"afterwards: {type(error).__name__}: {error}"]
        return self.memory.grown(self.cluster)


class _Play:
    """One run of one schedule."""

    def __init__(self, runner: Runner, schedule: Schedule, expected: Sequence[Expected]) -> None:
        self._cluster = runner.cluster
        self._oracle = runner.oracle
        self._schedule = schedule
        self._expected = expected
        self._faults: set[asyncio.Task[None]] = set()
        self._due = list(schedule.steps)
        self._busy: collections.defaultdict[str, asyncio.Lock] = collections.defaultdict(
            asyncio.Lock
        )
        self._ended = asyncio.Event()
        """Every request has: nobody is left whom a fault could harm."""

    async def play(self) -> list[Outcome]:
        for step in self._due[:]:
            if step.phase is Phase.TIME:
                self._trigger(step)
        requests = [self._client(index) for index in range(len(self._schedule.requests))]
        outcomes = await asyncio.gather(*requests)
        self._ended.set()
        await asyncio.gather(*self._faults)
        mend(self._cluster)
        return outcomes

    async def _client(self, index: int) -> Outcome:
        plan = self._schedule.requests[index]
        await asyncio.sleep(plan.start)
        return await play(
            plan, self._cluster.addresses, self._expected[index].stop, self._watcher(index)
        )

    def _watcher(self, index: int) -> Watch:
        def watch(tokens: int) -> None:
            for step in self._due[:]:
                if step.request == index and tokens >= step.tokens:
                    self._trigger(step)

        return watch

    def _trigger(self, step: Step) -> None:
        self._due.remove(step)
        self._faults.add(asyncio.create_task(self._fault(step)))

    async def _fault(self, step: Step) -> None:
        await asyncio.sleep(step.delay)
        if step.kind is Kind.CORRUPT:
            names = self._oracle.blob_names(self._schedule.requests[step.request])
            with contextlib.suppress(Exception):  # the service may be down just now
                await self._cluster.corrupt_blobs(names)
            return
        async with self._busy[step.target]:
            if step.kind in (Kind.KILL, Kind.TERM, Kind.AWAY):
                await self._end(step)
            else:
                with self._disturbed(step):
                    await self._lasts(step)

    async def _end(self, step: Step) -> None:
        child = self._cluster.supervisor.child(step.target)
        child.signal(signal.SIGTERM if step.kind is Kind.TERM else signal.SIGKILL)
        async with asyncio.timeout(_END_SECONDS):
            while child.exit_code() is None:
                await asyncio.sleep(0.01)
        await self._lasts(step)
        self._cluster.start(step.target)

    async def _lasts(self, step: Step) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(step.seconds):
                await self._ended.wait()

    @contextlib.contextmanager
    def _disturbed(self, step: Step) -> Iterator[None]:
        if step.kind is Kind.STOP:
            with self._cluster.stopped(step.target):
                yield
            return
        proxy = self._cluster.proxies[step.target]
        kinds = {Kind.STALL: proxy.stalled, Kind.CUT: proxy.refusing}
        disturb = kinds.get(step.kind, lambda: proxy.delayed(_DELAY_SECONDS))
        with disturb():
            yield
