"""Time per scheduling decision, in Python and in Lua: does it grow with the fleet or the queue?

    python -m bench.schedule_cost [--rounds 2000] [--no-lua]

Python: all that a router decides for one request, over a roster of 10 to 1,000 workers: plans for
a prefill and a decode worker and for a decode worker alone, the choice between them, the outlook,
what may be ahead, the place in the order, and the note of what was claimed. The waiting requests
are in Redis, so their number does not enter. Beside it: the same for a roster that takes in
one worker's news, and the time to build a roster anew, which is once a snapshot.

Lua: one request's scripts on an embedded server, with 10 to 100,000 waiting.
"""

import argparse
import importlib
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from baton.naming import Incarnation, RequestId, WorkerId
from baton.policy.admission import allowance
from baton.policy.cost import StepCost
from baton.policy.fleet import Demand, Load, ModelLimits, Role, Usage, Worker
from baton.policy.placement import AT_DECODE, SPLIT, plans, prefers_local
from baton.policy.roster import Roster
from baton.policy.score import fair_share, order

COST = StepCost(0.007, 3.3e-5, 1.3e-9, 3e-5, 5.5e-8, 0.05)
TENANTS = 20
"""Tenants that are busy at the moment."""


def fleet(count: int, seed: int = 0) -> list[Worker]:
    """Workers, half of each role, busy in different ways."""
    draw = random.Random(seed)
    return [_worker(number, draw) for number in range(count)]


def decide(roster: Roster, cached: dict[WorkerId, int], number: int) -> None:
    """What a router does for one request, from its arrival to its claim."""
    demand = Demand(RequestId(f"request-{number}"), 0, 4000, 500, 0, 0.1, cached)
    split = plans(demand, (SPLIT,), roster, _anyone)
    local = plans(demand, (AT_DECODE,), roster, _anyone)
    chosen = (local if prefers_local(demand, split[0], local[0]) else split)[0]
    outlook = roster.outlook(chosen[0].role, Role.DECODE, 2.0)
    allowed = allowance(outlook, 2.0 - chosen[0].best.prompt_s)
    active = {f"tenant{index}/interactive": 1.0 for index in range(TENANTS)}
    share = fair_share("tenant0", active, {})
    order(ttft_target_s=2.0, tenant="tenant0", share=share, workers=outlook.prompt_workers)
    allowed.admits(1.0, 10)
    for choice in chosen:
        best = choice.best
        roster.note(best.worker.worker_id, choice.cost, best.prompt_s)
        roster.note(best.worker.worker_id, Usage(0, 0) - choice.cost, -best.prompt_s)


def rows(rounds: int) -> list[tuple[int, float, float, float]]:
    """Workers, and microseconds of: a decision, one worker's news, a new roster."""
    found = []
    for count in (10, 30, 100, 300, 1000):
        workers = fleet(count)
        roster = Roster(workers, "router")
        draw = random.Random(1)
        cached = {
            worker.worker_id: 512 * draw.randint(1, 7)
            for worker in draw.sample(workers, min(16, count))
        }
        decision = _median_us(rounds, partial(decide, roster, cached))
        news = _median_us(rounds, partial(_put, roster, workers))
        anew = _median_us(max(3, rounds // 100), partial(_build, workers))
        found.append((count, decision, news, anew))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--no-lua", action="store_true", help="without the embedded server")
    options = parser.parse_args(arguments)
    print("Python, medians in us (workers; half prefill, half decode)")
    print(f"{'workers':>8} {'decision':>9} {'put':>9} {'new roster':>11}")
    for count, decision, news, anew in rows(options.rounds):
        print(f"{count:8d} {decision:9.0f} {news:9.1f} {anew:11.0f}")
    if not options.no_lua:
        print()
        importlib.import_module("bench.schedule_cost_lua").main([])


def _worker(number: int, draw: random.Random) -> Worker:
    role = Role.PREFILL if number % 2 else Role.DECODE
    running = draw.randint(0, 40)
    return Worker(
        worker_id=WorkerId(f"worker-{number}"),
        incarnation=Incarnation("one"),
        role=role,
        address=f"worker-{number}:1",
        transfer_address=f"host-{number // 8}",
        layout_fingerprint="layout",
        model=ModelLimits("model", 100_000, 131_072, frozenset()),
        capacity=Usage(128, 400_000),
        running=Usage(running, running * 3000),
        taken=frozenset(),
        draining=False,
        pid=number,
        cost=COST,
        load=Load(draw.uniform(0, 0.3), running * 3000, 0.1, None, 0.02),
        prompt_lookahead_s=0.15,
        step_tokens=2048,
    )


def _put(roster: Roster, workers: list[Worker], number: int) -> None:
    roster.put(workers[number % len(workers)])


def _build(workers: list[Worker], _number: int) -> Roster:
    return Roster(workers, "router")


def _anyone(_worker: Worker) -> bool:
    return True


def _median_us(rounds: int, action: Callable[[int], object]) -> float:
    times = []
    for number in range(rounds):
        start = time.perf_counter()
        action(number)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


if __name__ == "__main__":
    main()
