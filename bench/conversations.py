"""Serving scenario: conversations of several turns behind one shared beginning.

    python -m bench.conversations [--model demo] [--conversations 8] [--turns 6]

Every turn sends all that was said before, and something new. For each turn: prompt tokens, how
many of them were cached, and the time to first token, next to that of prompts as long with
nothing in common.
"""

import argparse
import asyncio
import random
import statistics
from dataclasses import dataclass, field

from baton.client import AsyncClient
from baton.events import Completed
from bench.serving.baton import running
from bench.serving.client import Sample, measure, row

WIDTHS = (6, 14, 14, 10, 12, 12)
HEAD = ("turn", "prompt tokens", "cached tokens", "cached", "ttft", "ttft uncached")


@dataclass(slots=True)
class Turn:
    """One turn of all conversations."""

    warm: list[Sample] = field(default_factory=list)
    cold: list[Sample] = field(default_factory=list)


def done(sample: Sample) -> Completed:
    """How it ended; raises what it failed with."""
    if sample.completed is None:
        raise sample.error or RuntimeError("the stream ended without a completion")
    return sample.completed


async def converse(
    client: AsyncClient, args: argparse.Namespace, begin: list[int], vocabulary: int, seed: int
) -> list[tuple[Sample, Sample]]:
    """A conversation's turns, each with a prompt as long that nobody has seen."""
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(count)]

    said, turns = list(begin), []
    for _ in range(args.turns):
        said += tokens(args.question)
        options = {"max_tokens": args.answer, "ttft_target": 60.0}
        cold = await measure(client, tokens(len(said)), **options)
        warm = await measure(client, said, **options)
        done(cold)
        done(warm)
        turns.append((warm, cold))
        said += warm.token_ids
        await asyncio.sleep(rng.random() * args.think)
    return turns


async def run(address: str, args: argparse.Namespace) -> None:
    """All conversations at the same time."""
    async with AsyncClient(address) as client:
        vocabulary = (await client.model()).vocab_size
        rng = random.Random(args.seed)
        begin = [rng.randrange(3, vocabulary) for _ in range(args.shared)]
        talks = await asyncio.gather(
            *(
                converse(client, args, begin, vocabulary, args.seed + 1 + number)
                for number in range(args.conversations)
            )
        )
    print(row(HEAD, WIDTHS))
    for number, pairs in enumerate(zip(*talks, strict=True), start=1):
        usages = [done(warm).usage for warm, _ in pairs]
        prompt = statistics.fmean(usage.prompt_tokens for usage in usages)
        cached = statistics.fmean(usage.cached_tokens for usage in usages)
        ttfts = [
            statistics.median(one.ttft_s or 0.0 for one in samples)
            for samples in zip(*pairs, strict=True)
        ]
        cells = (number, prompt, cached, f"{cached / prompt:.0%}", *ttfts)
        print(row(cells, WIDTHS))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prefill", type=int, default=1)
    parser.add_argument("--decode", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--shared", type=int, default=512, help="tokens that all begin with")
    parser.add_argument("--question", type=int, default=64, help="new tokens of a turn")
    parser.add_argument("--answer", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--think", type=float, default=1.0, help="longest pause between turns")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    pools = [f"--prefill={args.prefill}", f"--decode={args.decode}"]
    with running([f"--model={args.model}", *pools]) as address:
        asyncio.run(run(address, args))


if __name__ == "__main__":
    main()
