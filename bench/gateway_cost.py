"""What the HTTP gateway adds to a request: the same requests by gRPC and by the `openai` client.

    python -m bench.gateway_cost [--model demo] [--requests 100] [--concurrency 1 8]

Requests go in turn by one way and the other, so that both see the same machine. Each has the same
prompt and output length. Both clients run in this process, whose own work counts for both.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from statistics import median

from openai import AsyncOpenAI

from baton.client import AsyncClient
from baton.local.plan import free_port
from bench.serving.baton import running
from bench.serving.client import measure, percentile, row

WIDTHS = (12, 6, 10, 10, 10, 10, 10)
HEAD = ("at a time", "way", "ttft p50", "ttft p99", "gap p50", "gap p99", "total p50")

Times = list[float]
"""When a request was sent, and when each token came."""
Ask = Callable[[Sequence[int]], Awaitable[Times]]


def by_grpc(client: AsyncClient, tokens: int) -> Ask:
    """Asks the router itself."""

    async def ask(prompt: Sequence[int]) -> Times:
        sample = await measure(client, prompt, max_tokens=tokens)
        if sample.error is not None:
            raise sample.error
        return [sample.began, *sample.token_times]

    return ask


def by_http(client: AsyncOpenAI, model: str, tokens: int) -> Ask:
    """Asks the gateway."""

    async def ask(prompt: Sequence[int]) -> Times:
        times = [time.perf_counter()]
        stream = await client.completions.create(
            model=model,
            prompt=list(prompt),
            max_tokens=tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        return times + [
            time.perf_counter()
            async for chunk in stream
            if chunk.choices and chunk.choices[0].finish_reason is None
        ]

    return ask


async def compare(ways: dict[str, Ask], args: argparse.Namespace, vocabulary: int) -> None:
    """Measures each way under each concurrency."""
    rng = random.Random(1)
    print(row(HEAD, WIDTHS))
    for concurrency in args.concurrency:
        taken: dict[str, list[Times]] = {name: [] for name in ways}
        for _ in range(max(1, args.requests // concurrency)):
            for name, ask in ways.items():
                prompts = [
                    [rng.randrange(3, vocabulary) for _ in range(args.prompt)]
                    for _ in range(concurrency)
                ]
                taken[name] += await asyncio.gather(*map(ask, prompts))
        for name, every in taken.items():
            first = [times[1] - times[0] for times in every]
            gaps = [late - early for times in every for early, late in pairwise(times[1:])]
            totals = [times[-1] - times[0] for times in every]
            values = (
                percentile(first, 50), percentile(first, 99), percentile(gaps, 50),
                percentile(gaps, 99), median(totals),
            )  # fmt: skip
            print(row((concurrency, name, *(1000 * value for value in values)), WIDTHS))


async def run(address: str, http_port: int, args: argparse.Namespace) -> None:
    """Connects both ways, warms up, and compares. Times are printed in milliseconds."""
    url = f"http://127.0.0.1:{http_port}/v1"
    async with AsyncClient(address) as client, AsyncOpenAI(base_url=url, api_key="none") as http:
        model = await client.model()
        ways = {
            "gRPC": by_grpc(client, args.output),
            "HTTP": by_http(http, model.name, args.output),
        }
        for ask in ways.values():
            for _ in range(3):
                await ask([5, 6, 7])
        await compare(ways, args, model.vocab_size)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--requests", type=int, default=100, help="by each way")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--output", type=int, default=32, help="tokens")
    args = parser.parse_args()
    port = free_port()
    with running([f"--model={args.model}", f"--http-port={port}"]) as address:
        asyncio.run(run(address, port, args))


if __name__ == "__main__":
    main()
