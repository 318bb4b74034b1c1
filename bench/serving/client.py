"""Requests as a client sees them: when each token came, and how it ended."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from typing import Any

from baton import errors
from baton.client import AsyncClient
from baton.events import Completed, Delta

DEADLINE_S = 300.0


@dataclass(slots=True)
class Sample:
    """One request."""

    began: float
    """time.perf_counter() when it was sent."""
    token_times: list[float] = field(default_factory=list)
    """When each token came."""
    token_ids: list[int] = field(default_factory=list)
    completed: Completed | None = None
    error: errors.BatonError | None = None
    ended: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None: none came."""
        return self.token_times[0] - self.began if self.token_times else None

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between tokens."""
        return [late - early for early, late in pairwise(self.token_times)]

    def held(self, ttft_s: float, itl_s: float) -> bool:
        """Whether it completed, its first token in time, the others in time on average."""
        gaps = self.gaps_s
        return (
            self.completed is not None
            and self.ttft_s is not None
            and self.ttft_s <= ttft_s
            and (not gaps or sum(gaps) / len(gaps) <= itl_s)
        )


async def measure(client: AsyncClient, prompt: Sequence[int], **options: Any) -> Sample:
    """Sends one request, and reads it to its end."""
    sample = Sample(time.perf_counter())
    options = {"temperature": 0.0, "ignore_eos": True, "timeout": DEADLINE_S} | options
    try:
        async with client.generate(list(prompt), **options) as stream:
            async for event in stream:
                if isinstance(event, Delta):
                    now = time.perf_counter()
                    sample.token_times += [now] * len(event.tokens)
                    sample.token_ids += [token.id for token in event.tokens]
                elif isinstance(event, Completed):
                    sample.completed = event
    except errors.BatonError as error:
        sample.error = error
    sample.ended = time.perf_counter()
    return sample


@dataclass(frozen=True, slots=True)
class Mix:
    """What requests look like."""

    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]

    def draw(self, rng: random.Random, vocabulary: int) -> tuple[list[int], int]:
        """A prompt, and how many tokens to generate."""
        length = rng.choice(self.prompt_tokens)
        prompt = [rng.randrange(3, vocabulary) for _ in range(length)]
        return prompt, rng.choice(self.output_tokens)


async def open_loop(
    client: AsyncClient,
    mix: Mix,
    *,
    rate: float,
    seconds: float,
    rng: random.Random,
    vocabulary: int,
    **options: Any,
) -> list[Sample]:
    """Sends requests at random moments, `rate` a second on average, whatever becomes of them."""
    tasks: list[asyncio.Task[Sample]] = []
    begin = due = time.perf_counter()
    while due < begin + seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        prompt, most = mix.draw(rng, vocabulary)
        tasks.append(asyncio.create_task(measure(client, prompt, max_tokens=most, **options)))
        due += rng.expovariate(rate)
    return list(await asyncio.gather(*tasks))


async def closed_loop(
    client: AsyncClient,
    mix: Mix,
    *,
    concurrency: int,
    seconds: float,
    rng: random.Random,
    vocabulary: int,
    **options: Any,
) -> list[Sample]:
    """Keeps so many requests going; those that began in time are read to their end."""
    end = time.perf_counter() + seconds
    samples: list[Sample] = []

    async def one() -> None:
        while time.perf_counter() < end:
            prompt, most = mix.draw(rng, vocabulary)
            samples.append(await measure(client, prompt, max_tokens=most, **options))

    await asyncio.gather(*(one() for _ in range(concurrency)))
    return samples


def percentile(values: Sequence[float], percent: int) -> float:
    """Of at least one value; 0 of none."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def row(cells: Sequence[object], widths: Sequence[int]) -> str:
    """A line of a table."""
    return "  ".join(
        f"{cell:>{width}.3f}" if isinstance(cell, float) else f"{cell!s:>{width}}"
        for cell, width in zip(cells, widths, strict=True)
    )
