"""Serving scenario: a steady mix at 50 to 200 % of measured capacity; goodput must not fall.

    python -m bench.steady_mix [--model demo] [--seconds 30] [--prefill 1 --decode 1]

Capacity is what a closed loop of many requests gets through; then requests arrive at random
moments at a share of that, each with targets. A request is good when its first token and its
mean gap between tokens came within them. Refusals come before any compute, with a time to try
again; nobody does.
"""

import argparse
import asyncio
import random
import statistics
from collections.abc import Sequence

from baton.client import AsyncClient
from baton.errors import Exhausted
from bench.serving.baton import running
from bench.serving.client import Mix, Sample, closed_loop, open_loop, percentile, row

WIDTHS = (9, 8, 8, 9, 8, 8, 9, 9, 9, 9, 12)
HEAD = (
    "load", "sent/s", "done/s", "goodput/s", "refused", "failed",
    "ttft p50", "ttft p99", "itl p50", "itl p99", "refused in s",
)  # fmt: skip


def report(load: str, samples: Sequence[Sample], seconds: float, ttft: float, itl: float) -> str:
    """One line of the table."""
    done = [one for one in samples if one.completed is not None]
    refused = [one for one in samples if isinstance(one.error, Exhausted)]
    failed = [one for one in samples if one.error is not None and one not in refused]
    good = [one for one in done if one.held(ttft, itl)]
    ttfts = [one.ttft_s for one in done if one.ttft_s is not None]
    means = [statistics.fmean(one.gaps_s) for one in done if one.gaps_s]
    return row(
        (
            load, len(samples) / seconds, len(done) / seconds, len(good) / seconds,
            len(refused), len(failed),
            percentile(ttfts, 50), percentile(ttfts, 99),
            percentile(means, 50), percentile(means, 99),
            percentile([one.ended - one.began for one in refused], 99),
        ),
        WIDTHS,
    )  # fmt: skip


async def run(address: str, args: argparse.Namespace) -> None:
    """Measures capacity, then each load."""
    mix = Mix(tuple(args.prompt), tuple(args.output))
    rng = random.Random(args.seed)
    targets = {"ttft_target": args.ttft, "itl_target": args.itl}
    async with AsyncClient(address) as client:
        common = {"rng": rng, "vocabulary": (await client.model()).vocab_size}
        for seconds in (args.seconds / 4, args.seconds):  # the first warms up
            samples = await closed_loop(
                client, mix, concurrency=args.concurrency, seconds=seconds,
                request_class="batch", ttft_target=3600.0, itl_target=args.itl, **common,
            )  # fmt: skip
        span = max(one.ended for one in samples) - min(one.began for one in samples)
        capacity = sum(one.completed is not None for one in samples) / span
        print(
            f"prompts of {args.prompt}, outputs of {args.output} tokens; targets: first token "
            f"{args.ttft:g} s, gaps {args.itl:g} s; capacity {capacity:.2f} requests/s "
            f"({args.concurrency} at a time)"
        )
        print(row(HEAD, WIDTHS))
        for percent in args.loads:
            began = asyncio.get_running_loop().time()
            samples = await open_loop(
                client, mix, rate=capacity * percent / 100, seconds=args.seconds,
                **targets, **common,
            )  # fmt: skip
            span = asyncio.get_running_loop().time() - began
            seconds = max(args.seconds, min(span, args.seconds + args.ttft))
            print(report(f"{percent} %", samples, seconds, args.ttft, args.itl), flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prefill", type=int, default=1)
    parser.add_argument("--decode", type=int, default=1)
    parser.add_argument("--aggregated", action="store_true")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each load")
    parser.add_argument("--loads", type=int, nargs="+", default=[50, 80, 100, 150, 200])
    parser.add_argument("--prompt", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--output", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--concurrency", type=int, default=16, help="while capacity is measured")
    parser.add_argument("--ttft", type=float, default=2.0, help="target in seconds")
    parser.add_argument("--itl", type=float, default=0.2, help="target in seconds")
    parser.add_argument("--slack", type=float, default=0.0, help="seconds beyond which to refuse")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    pools = ["--aggregated"] if args.aggregated else [f"--prefill={args.prefill}"]
    options = [
        f"--model={args.model}", *pools, f"--decode={args.decode}",
        f"--service-flag=router:--ttft-slack-s={args.slack}",
    ]  # fmt: skip
    with running(options) as address:
        asyncio.run(run(address, args))


if __name__ == "__main__":
    main()
