"""Simulates a fleet under a trace: Baton's policy against plain load balancing.

    python -m bench.simulate [TRACE.jsonl] --prefill 4 --decode 4
    python -m bench.simulate --aggregated 8 --policies baton least-outstanding
    python -m bench.simulate --prefill 500 --decode 500 --requests 100000
    python -m bench.simulate --prefill 4 --decode 4 --splits 2 3 5 6 --compare-aggregated

A discrete-event simulation of engines that work step by step: chunked prompts, continuous
batching, KV room that grows, preemption, prefix caches, handoffs. Baton's routers call the
functions of `baton.policy` and see what real ones would: heartbeats and snapshots that are some
tenths of a second old, and a queue in the order of Redis' scripts. The balancers send each
request to a worker at once, where it waits first come, first served, and refuse nothing.

Loads are percent of the capacity: requests a second that the fleet finishes, within and without
targets, under Baton's policy while far more are asked for and none is refused (`--capacity`
gives it instead). A request counts as good that was not refused, had its first token within its
TTFT target, and whose mean time between tokens is within its ITL target. Without a target in the
trace that is the class's, or for the first token twice what its prompt takes on an idle worker.

The default costs are those of a model of 8 billion parameters in 16 bits on one accelerator with
80 GB and 3.3 TB/s: 7 ms to read the weights, 33 us for each prompt token (half of 990 TFLOP/s),
1.3 ns for each pair in attention, 55 ns to read a context token's 128 KiB of KV. They are
estimates, not measured.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from baton.policy.cost import StepCost
from bench.sim.fleet import FleetConfig
from bench.sim.measure import Result
from bench.sim.routers import RouterConfig
from bench.sim.run import BATON, POLICIES, Scenario, saturation, simulate
from bench.sim.worker import Spec
from bench.sim.workload import Line, load

TRACE = Path(__file__).parents[2] / "shared" / "traces" / "synthetic_trace.jsonl"
HEADER = (
    "policy             fleet    load  offered goodput  held"
    "   TTFT p50    p90    p99   ITL p50  p90  p99"
    "   busy P    D  refused cached local preempted"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the command line asks for and prints it."""
    options = _parser().parse_args(arguments)
    base = scenario(options, load(options.trace), options.prefill, options.decode)
    capacity = options.capacity or measured_capacity(base)
    if not options.json:
        _print_head(base, capacity, measured=not options.capacity)
    for run, policy, percent in _runs(options, base):
        start = time.perf_counter()
        result = simulate(run, policy, capacity * percent / 100, percent / 100)
        fleet = f"{run.fleet.prefill}+{run.fleet.decode}"
        if options.json:
            print(json.dumps({"fleet": fleet, "capacity": capacity} | result.as_dict()), flush=True)
        else:
            print(row(result, fleet), flush=True)
        if options.verbose:
            print(f"  {time.perf_counter() - start:.1f} s", file=sys.stderr)


def scenario(options: argparse.Namespace, lines: list[Line], prefill: int, decode: int) -> Scenario:
    """What the command line tells, for a fleet of so many workers of each role."""
    cost = StepCost(
        options.base_ms / 1e3,
        options.prompt_token_us / 1e6,
        options.prompt_pair_ns / 1e9,
        options.sequence_us / 1e6,
        options.context_token_ns / 1e9,
        relative_error=options.noise,
    )
    spec = Spec(
        cost=cost,
        sequences=options.sequences,
        kv_tokens=options.kv_tokens,
        step_tokens=options.step_tokens,
        lookahead_s=2 * cost.step_s(prompt_tokens=options.step_tokens),
        noise=options.noise,
    )
    fleet = FleetConfig(
        prefill=prefill,
        decode=decode,
        spec=spec,
        workers_per_host=options.workers_per_host,
        cache_tokens=options.cache_tokens,
        link_bytes_s=options.link_gb_s * 1e9,
        ttft_target_s=options.ttft_target,
        itl_target_s=options.itl_target,
        batch_share=options.batch_share,
        seed=options.seed,
    )
    routers = RouterConfig(
        routers=options.routers,
        poll_s=options.poll,
        slack_s=options.slack,
        refuse=not options.no_refusal,
        disaggregation=options.disaggregation if prefill else "never",
    )
    copies = options.copies or max(1, round((prefill + decode) / 8))
    count = options.requests or min(100_000, len(lines) * copies)
    return Scenario(fleet, routers, lines, copies, count, options.warm_up)


def measured_capacity(base: Scenario) -> float:
    """The saturation throughput, with between 1.5 and 3 times as much asked for."""
    cost, spec = base.fleet.spec.cost, base.fleet.spec
    work_s = [cost.prefill_s(line.input_tokens, 0, spec.step_tokens) for line in base.lines]
    rate = 2 * (base.fleet.prefill + base.fleet.decode) * len(work_s) / sum(work_s)
    for _ in range(4):
        found = saturation(base, BATON, rate)
        if 1.5 * found <= rate <= 3 * found:
            break
        rate = 2 * found
    return found


def row(result: Result, fleet: str) -> str:
    """One line of the table: seconds for TTFT, milliseconds for ITL, percent for shares."""
    ttft = " ".join("     -" if math.isinf(one) else f"{one:6.2f}" for one in result.ttft_s)
    itl = " ".join(f"{1e3 * one:4.0f}" for one in result.itl_s)
    busy = f"{100 * result.prompt_utilization:4.0f} {100 * result.decode_utilization:4.0f}"
    return (
        f"{result.policy:<18} {fleet:<8} {100 * result.load:4.0f} {result.offered:8.2f} "
        f"{result.goodput:7.2f} {100 * result.held:5.1f}     {ttft}      {itl}"
        f"     {busy} {100 * result.refused:8.1f} {100 * result.cached:6.1f} "
        f"{100 * result.local:5.1f} {result.preempted:9d}"
    )


def _runs(options: argparse.Namespace, base: Scenario) -> Iterator[tuple[Scenario, str, float]]:
    workers = options.prefill + options.decode
    for percent in options.loads:
        for policy in options.policies:
            yield base, policy, percent
        others = [one for one in options.splits if one != options.prefill]
        if options.compare_aggregated:
            others.append(0)
        for prefill in others:
            lines = list(base.lines)
            yield scenario(options, lines, prefill, workers - prefill), BATON, percent


def _print_head(base: Scenario, capacity: float, *, measured: bool) -> None:
    fleet = base.fleet
    how = "measured" if measured else "given"
    print(f"{fleet.prefill} prefill and {fleet.decode} decode workers, {base.count} requests")
    print(f"capacity ({how}): {capacity:.2f} requests/s")
    print("loads and shares in percent, TTFT in s, ITL in ms, rates in requests/s")
    print(HEADER)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", nargs="?", type=Path, default=TRACE, help="JSON lines")
    _fleet_options(parser.add_argument_group("fleet"))
    _engine_options(parser.add_argument_group("engine, for each worker"))
    _load_options(parser.add_argument_group("load and policy"))
    return parser


def _fleet_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--prefill", type=int, default=4, help="prefill workers (4)")
    group.add_argument("--decode", type=int, default=4, help="decode workers (4)")
    group.add_argument("--aggregated", action=_Aggregated, type=int, help="N workers of no role")
    group.add_argument(
        "--splits", type=int, nargs="*", default=[], help="other numbers of prefill workers to try"
    )
    group.add_argument(
        "--compare-aggregated", action="store_true", help="also without roles, at equal hardware"
    )
    group.add_argument("--workers-per-host", type=int, default=1, help="that share prefixes (1)")
    group.add_argument("--cache-tokens", type=int, default=1_000_000, help="a worker (1,000,000)")
    group.add_argument("--link-gb-s", type=float, default=25.0, help="GB/s for handoffs (25)")


def _engine_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--base-ms", type=float, default=7.0, help="of a step (7)")
    group.add_argument("--prompt-token-us", type=float, default=33.0, help="(33)")
    group.add_argument("--prompt-pair-ns", type=float, default=1.3, help="(1.3)")
    group.add_argument("--sequence-us", type=float, default=30.0, help="(30)")
    group.add_argument("--context-token-ns", type=float, default=55.0, help="(55)")
    group.add_argument("--noise", type=float, default=0.05, help="of steps, relative (0.05)")
    group.add_argument("--sequences", type=int, default=128, help="most at once (128)")
    group.add_argument("--kv-tokens", type=int, default=400_000, help="(400,000)")
    group.add_argument("--step-tokens", type=int, default=2048, help="most in a step (2048)")


def _load_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    group.add_argument("--loads", type=float, nargs="+", default=[60, 80, 100, 120])
    group.add_argument("--capacity", type=float, help="requests/s; default: measured")
    group.add_argument("--requests", type=int, help="default: all copies, 100,000 at most")
    group.add_argument("--copies", type=int, help="of the trace; default: one for 8 workers")
    group.add_argument("--warm-up", type=float, default=0.1, help="share not counted (0.1)")
    group.add_argument("--routers", type=int, default=2, help="(2)")
    group.add_argument("--poll", type=float, help="s between a router's snapshots")
    group.add_argument("--slack", type=float, default=RouterConfig().slack_s, help="s past target")
    group.add_argument("--no-refusal", action="store_true", help="let everyone wait")
    group.add_argument("--disaggregation", choices=["auto", "always", "never"], default="auto")
    group.add_argument("--ttft-target", type=float, default=2.0, help="s (2)")
    group.add_argument("--itl-target", type=float, default=0.2, help="s (0.2)")
    group.add_argument("--batch-share", type=float, default=0.0, help="of requests (0)")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--json", action="store_true", help="a JSON object for each row")
    group.add_argument("--verbose", action="store_true", help="time of each simulation")


class _Aggregated(argparse.Action):
    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        _option: str | None = None,
    ) -> None:
        namespace.prefill, namespace.decode = 0, values


if __name__ == "__main__":
    main()
