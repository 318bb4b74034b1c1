"""Runs seeded fault schedules: many of them, or one again that failed.

    python -m tests.faults --schedules 300 --requests 10000
    python -m tests.faults --seed 17

Exits 1 when a schedule failed; each failure is printed with its seed and its steps.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from services.common.text import TextModel
from tests.faults.checks import Oracle
from tests.faults.memory import grown_over
from tests.faults.runner import Runner, ScheduleFailed, fault_cluster
from tests.faults.schedules import Schedule
from tests.support.models import served_gemma3
from tests.support.reference import Reference


def main() -> int:
    """The exit code."""
    options = _options()
    seeds = [options.seed] * options.repeat if options.seed is not None else None
    if seeds is None:
        seeds = list(range(options.first, options.first + options.schedules))
    for seed in seeds if options.show else ():
        sys.stdout.write(f"{Schedule.of(seed)}\n")
    if options.show:
        return 0
    with tempfile.TemporaryDirectory(prefix="baton-faults-") as scratch:
        directory = Path(options.keep or scratch)
        soak = Soak(directory, seeds, options.keep_going, options.requests)
        return asyncio.run(soak.run())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--schedules", type=int, default=100, help="how many to run (100)")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first one (1000)")
    parser.add_argument("--requests", type=int, default=0, help="then look for memory that grows")
    parser.add_argument("--seed", type=int, help="run the schedule of this seed alone")
    parser.add_argument("--repeat", type=int, default=1, help="times to run that one (1)")
    parser.add_argument("--show", action="store_true", help="print the schedules, run nothing")
    parser.add_argument("--keep", metavar="DIR", help="keep the model and the logs in DIR")
    parser.add_argument(
        "--keep-going", action="store_true", help="go on after a failure, with a new cluster"
    )
    return parser.parse_args()


class Soak:
    """One run of the command."""

    def __init__(self, directory: Path, seeds: list[int], keep_going: bool, requests: int) -> None:
        self._directory = directory
        self._seeds = seeds
        self._keep_going = keep_going
        self._requests = requests
        self._model = served_gemma3(directory / "model")
        self._oracle = Oracle(Reference(self._model), TextModel.load(self._model))
        self._failed: list[int] = []

    async def run(self) -> int:
        """The exit code."""
        began = time.monotonic()
        left = list(self._seeds)
        while left and (self._keep_going or not self._failed):
            left = await self._until_failure(left)
        grown = await self._memory() if self._requests else []
        sys.stdout.write(
            f"{len(self._seeds) - len(left)} schedules, {time.monotonic() - began:.0f} s; "
            f"near-ties: {self._oracle.ties}; failed: {self._failed or 'none'}\n"
        )
        return 1 if self._failed or grown else 0

    async def _until_failure(self, seeds: list[int]) -> list[int]:
        """Runs schedules over one cluster; those that are left."""
        with fault_cluster(self._model, self._directory / f"run-{len(self._failed)}") as cluster:
            runner = Runner(cluster, self._oracle)
            left = list(seeds)
            while left:
                seed = left.pop(0)
                try:
                    await _one(runner, seed, len(self._seeds) - len(left), len(self._seeds))
                except ScheduleFailed as failure:
                    self._failed.append(seed)
                    sys.stdout.write(f"{failure}\n")
                    break
            counts = ", ".join(f"{count} {what}" for what, count in runner.counts.most_common())
            sys.stdout.write(f"requests: {counts}\n")
            return left

    async def _memory(self) -> list[str]:
        with fault_cluster(self._model, self._directory / "memory") as cluster:
            grown = await grown_over(cluster, self._requests)
        sys.stdout.write(f"{self._requests} requests: {'; '.join(grown) or 'no process grew'}\n")
        return grown


async def _one(runner: Runner, seed: int, number: int, total: int) -> None:
    began = time.monotonic()
    schedule = Schedule.of(seed)
    outcomes = await runner.run(schedule)
    steps = "; ".join(map(str, schedule.steps))
    got = ", ".join(outcome.what for outcome in outcomes)
    took = time.monotonic() - began
    sys.stdout.write(f"{number}/{total} seed {seed}: {took:.1f} s, {got} ({steps})\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
