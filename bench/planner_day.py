"""Simulates a day under pools of fixed size, a CPU-utilization HPA and Baton's planner.

    python -m bench.planner_day
    python -m bench.planner_day --plot docs/simulated-day.svg
    python -m bench.planner_day --hours 24 --size 1 --only planner "static, peak"

The fleet is that of `bench.simulate`, with pools that grow and shrink: a worker costs its GPU
from the moment it is asked for, serves two minutes later, and drains when it goes. The requests
are the trace's: those with short answers come most in the early afternoon, those with long ones
in the evening, made longer as a model's that reasons. All that has hours is scaled to the
length of the simulated day (`--hours`), but neither the workers' start nor any time of the
planner or the HPA: a short day is harder than a real one.

The planner remembers two days before. It, the HPA and `static, peak` begin with the pools
that the busiest hour needs; `static, mean` has what the day's mean needs. The HPA
(target 70 %, Kubernetes' defaults) sees as CPU use the share of the time in which a worker's
engine steps. Held is the share of all requests, refused ones included, that held both targets.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from baton.policy.fleet import Role
from bench.sim.days import PLANNER, SCALERS, STATIC_PEAK, Day, day
from bench.sim.scaled import EPOCH_S, Scaled, run
from bench.sim.scalers import Planned
from bench.sim.workload import load
from bench.simulate import TRACE

HEADER = f"{'':22} goodput   held   TTFT    ITL  refused  GPU-hours        turns P/D"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the command line asks for and prints it."""
    options = _parser().parse_args(arguments)
    today = day(
        load(options.trace), season_s=3600 * options.hours, size=options.size, before=2,
        seed=options.seed,
    )  # fmt: skip
    print(f"{len(today.load.arrivals)} requests in {options.hours:g} h", end="; ")
    for name, pools in (("peak", today.peak), ("mean", today.mean)):
        print(f"{name}: {pools[Role.PREFILL]} prefill, {pools[Role.DECODE]} decode", end="; ")
    print(f"\n{HEADER}", flush=True)
    names = [name for name in SCALERS if name in options.only]
    results: dict[str, Scaled] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        made = pool.map(partial(_simulate, today, cpu_target=options.cpu_target), names)
        for name, (result, decisions) in zip(names, made, strict=True):
            results[name] = result
            print(row(name, result, results.get(STATIC_PEAK)), flush=True)
            for decision in decisions if options.decisions else ():
                print(decision)
    if options.plot is not None:
        from bench.sim.day_plot import plot

        plot(options.plot, today, results[PLANNER], results[STATIC_PEAK], options.hours)


def _simulate(today: Day, name: str, cpu_target: float) -> tuple[Scaled, list[str]]:
    """What came of it, and a line for each of the planner's decisions."""
    scaler = today.scaler(name, cpu_target)
    result = run(today.scenario(name), scaler)
    changes = scaler.changes if isinstance(scaler, Planned) else []
    return result, [
        f"{at_s - EPOCH_S:8.0f} s  {one.cause.value}: {one.why}" for at_s, one in changes
    ]


def row(name: str, result: Scaled, peak: Scaled | None) -> str:
    """One line of the table: shares in percent, goodput in requests a second."""
    part = f"({100 * result.gpu_hours / peak.gpu_hours:3.0f}%)" if peak else ""
    turns = "/".join(str(result.turns(role)) for role in (Role.PREFILL, Role.DECODE))
    return (
        f"{name:22} {result.goodput:7.3f} {100 * result.held:6.1f} {100 * result.ttft_held:6.1f} "
        f"{100 * result.itl_held:6.1f} {100 * result.refused:8.1f} {result.gpu_hours:10.1f} "
        f"{part:6} {turns:>9}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.planner_day",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", nargs="?", type=Path, default=TRACE, help="JSON lines")
    parser.add_argument("--hours", type=float, default=2.0, help="length of the day (2)")
    parser.add_argument("--size", type=float, default=0.5, help="multiplies the load (0.5)")
    parser.add_argument("--only", nargs="+", choices=SCALERS, default=list(SCALERS))
    parser.add_argument("--cpu-target", type=float, default=0.7, help="the HPA's (0.7)")
    parser.add_argument("--jobs", type=int, default=2, help="simulations at a time (2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decisions", action="store_true", help="print what the planner decided")
    parser.add_argument("--plot", type=Path, help="SVG of the planner's day; needs matplotlib")
    return parser


if __name__ == "__main__":
    main()
