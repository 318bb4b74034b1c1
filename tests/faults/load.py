"""Clients that send one request after the other while a test lets things fail.

Every answer is compared with the uninterrupted engine's, and none may fail.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc

from baton.client import Client
from tests.faults.checks import Expected, Oracle
from tests.faults.clients import Outcome, play
from tests.faults.workload import RequestPlan
from tests.support.cluster import Cluster
from tests.support.idle import held_in


@dataclass
class Work:
    """Requests and what they must yield."""

    plans: list[RequestPlan]
    expected: list[Expected]
    oracle: Oracle

    @classmethod
    def of(cls, plans: Sequence[RequestPlan], oracle: Oracle) -> "Work":
        return cls(list(plans), oracle.expected_all(plans), oracle)


def mixed(seed: int, count: int = 16, *, longest: int = 100) -> list[RequestPlan]:
    """Patient requests of mixed length, greedy and sampled."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 250) for _ in range(48)]
    return [
        RequestPlan(
            prompt=(*shared[: rng.choice((0, 16, 48))], *_ids(rng, rng.choice((1, 16, 17, 90)))),
            max_tokens=rng.choice((1, 8, 30, longest)),
            seed=rng.randrange(2**32),
            temperature=rng.choice((0.0, 0.9)),
            n=rng.choice((1, 1, 1, 2)),
            router=number,
        )
        for number in range(count)
    ]


def fresh(name: object, length: int, max_tokens: int, **more: object) -> RequestPlan:
    """A patient request, the same for the same name, whose prompt no other one has."""
    rng = random.Random(f"fresh-{name}")
    return RequestPlan(_ids(rng, length), max_tokens, rng.randrange(2**32), **more)  # type: ignore[arg-type]


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, 250) for _ in range(count))


@dataclass
class Load:
    """A running load."""

    outcomes: list[Outcome] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    stopped: bool = False

    async def until(self, served: int, seconds: float = 30.0) -> None:
        """Waits until so many more requests have ended."""
        goal = len(self.outcomes) + served
        async with asyncio.timeout(seconds):
            while len(self.outcomes) < goal:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def under_load(cluster: Cluster, work: Work, clients: int = 6) -> AsyncIterator[Load]:
    """A load for as long as the block runs; then no request may have failed."""
    load = Load()
    numbers = itertools.count()

    async def client() -> None:
        while not load.stopped:
            index = next(numbers) % len(work.plans)
            expected = work.expected[index]
            outcome = await play(
                work.plans[index], cluster.addresses, expected.stop, lambda tokens: None
            )
            load.outcomes.append(outcome)
            load.problems += work.oracle.problems(outcome, expected, strict=True)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
        try:
            await load.until(clients)
            yield load
            await load.until(clients)
        finally:
            load.stopped = True
    assert not load.problems, load.problems


async def played(cluster: Cluster, work: Work) -> list[Outcome]:
    """All at once; no one may fail."""
    outcomes = await asyncio.gather(
        *(
            play(plan, cluster.addresses, right.stop, lambda tokens: None)
            for plan, right in zip(work.plans, work.expected, strict=True)
        )
    )
    found = [
        problem
        for outcome, right in zip(outcomes, work.expected, strict=True)
        for problem in work.oracle.problems(outcome, right, strict=True)
    ]
    assert not found, found
    return outcomes


async def ended(cluster: Cluster, name: str, number: int, seconds: float = 20.0) -> None:
    """Sends a signal that ends a process, and waits for its end without blocking the loop."""
    child = cluster.supervisor.child(name)
    child.signal(number)
    async with asyncio.timeout(seconds):
        while child.exit_code() is None:
            await asyncio.sleep(0.01)


async def restarted(cluster: Cluster, name: str, number: int) -> None:
    """Ends a process and waits until it is back and known to every router."""
    await ended(cluster, name, number)
    cluster.start(name)
    await ready(cluster)


async def ready(cluster: Cluster, seconds: float = 60.0) -> None:
    """Waits until the cluster is whole, without blocking the loop."""
    async with asyncio.timeout(seconds):
        while not (
            cluster.supervisor.ready() and await asyncio.to_thread(lambda: cluster.complete())
        ):
            await asyncio.sleep(0.05)


def counted(cluster: Cluster, counter: str) -> int:
    """A counter of RouterStatus, over all routers."""
    return sum(int(getattr(fleet.router, counter)) for fleet in cluster.fleets())


async def until_decoding(
    cluster: Cluster, names: Sequence[str], *, any_of_them: bool = False
) -> list[str]:
    """Waits until sequences run on each of the workers, or on any of them; those that do."""
    async with asyncio.timeout(10.0):
        while True:
            busy = [name for name in names if _decodes(cluster, name)]
            if len(busy) == len(names) or (busy and any_of_them):
                return busy
            await asyncio.sleep(0.01)


def _decodes(cluster: Cluster, name: str) -> bool:
    try:
        return cluster.worker_status(name).running_sequences > 0
    except grpc.RpcError:  # it is not there just now
        return False


async def until_idle_at(client: Client, seconds: float) -> None:
    """Waits until a router sees nothing held, whatever other routers are or are not there."""
    deadline = time.monotonic() + seconds
    while held := held_in(await asyncio.to_thread(client.fleet)):
        assert time.monotonic() < deadline, f"not free after {seconds} s: {held}"
        await asyncio.sleep(0.05)
