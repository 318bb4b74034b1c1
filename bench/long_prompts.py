"""Serving scenario: four long streams while a 2,000-token prompt comes every six seconds.

    python -m bench.long_prompts [--model demo] [--seconds 60] [--rounds 1]

Times between the streams' tokens, with the prompts and without, on a disaggregated and on an
aggregated Baton of equally many workers and threads, one after the other in each round.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence

from baton.client import AsyncClient
from bench.serving.baton import running
from bench.serving.client import Sample, measure, percentile, row

WIDTHS = (16, 10, 10, 10, 10, 12, 12)
HEAD = ("", "prompts", "itl p50", "itl p99", "itl max", "prompt ttft", "tokens/s")


async def streams(
    client: AsyncClient, args: argparse.Namespace, vocabulary: int, with_prompts: bool
) -> tuple[list[float], list[Sample], float]:
    """Gaps of the streams, the prompts' samples, and the streams' tokens a second."""
    rng = random.Random(args.seed)
    until = time.perf_counter() + args.seconds

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(count)]

    async def stream() -> list[Sample]:
        samples = []
        while time.perf_counter() < until:
            samples.append(await measure(client, tokens(64), max_tokens=args.output))
        return samples

    async def prompts() -> list[Sample]:
        tasks = []
        await asyncio.sleep(args.every / 2)
        while with_prompts and time.perf_counter() < until - args.every / 2:
            asked = measure(client, tokens(args.prompt), max_tokens=8, ttft_target=60.0)
            tasks.append(asyncio.create_task(asked))
            await asyncio.sleep(args.every)
        return list(await asyncio.gather(*tasks))

    began = time.perf_counter()
    *running_streams, prompted = await asyncio.gather(
        *(stream() for _ in range(args.streams)), prompts()
    )
    samples = [sample for one in running_streams for sample in one]
    for sample in [*samples, *prompted]:
        if sample.error is not None:
            raise sample.error
    count = sum(len(sample.token_times) for sample in samples)
    gaps = [gap for sample in samples for gap in sample.gaps_s]
    return gaps, prompted, count / (time.perf_counter() - began)


async def compare(address: str, label: str, args: argparse.Namespace) -> None:
    """Both measurements on one Baton."""
    async with AsyncClient(address) as client:
        vocabulary = (await client.model()).vocab_size
        warm = [measure(client, range(10, 10 + args.prompt), max_tokens=8, ttft_target=60.0)]
        await asyncio.gather(*warm)
        for with_prompts in (False, True):
            gaps, prompted, rate = await streams(client, args, vocabulary, with_prompts)
            ttfts = [one.ttft_s for one in prompted if one.ttft_s is not None]
            cells = (
                label, len(prompted), percentile(gaps, 50), percentile(gaps, 99), max(gaps),
                percentile(ttfts, 50), rate,
            )  # fmt: skip
            print(row(cells, WIDTHS), flush=True)


def pools(args: argparse.Namespace) -> Sequence[tuple[str, list[str]]]:
    """Equal hardware: as many workers, each with as many threads."""
    threads = [f"--threads={args.threads}"]
    return (
        ("disaggregated", ["--prefill=1", "--decode=1", *threads]),
        ("aggregated", ["--aggregated", "--decode=2", *threads]),
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each measurement")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--output", type=int, default=400, help="tokens of a stream")
    parser.add_argument("--prompt", type=int, default=2000, help="tokens of a prompt")
    parser.add_argument("--every", type=float, default=6.0, help="seconds between prompts")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(row(HEAD, WIDTHS))
    for _ in range(args.rounds):
        for label, options in pools(args):
            with running([f"--model={args.model}", *options]) as address:
                asyncio.run(compare(address, label, args))


if __name__ == "__main__":
    main()
