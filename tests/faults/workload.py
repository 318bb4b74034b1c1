"""Requests of a schedule, drawn from its seed. Knows no faults, no clients and no answers."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

BLOCK = 16
_LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1, 70, 110)
PATIENT_SECONDS = 30.0


@dataclass(frozen=True)
class RequestPlan:
    """One client's request."""

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float = 0.0
    n: int = 1
    start: float = 0.0
    """Seconds after the schedule began."""
    timeout: float = PATIENT_SECONDS
    cancel_at: int | None = None
    """The client leaves after so many tokens."""
    stop_at: float | None = None
    """A stop string is taken from this part of choice 0's text, 0 to 1."""
    router: int = 0
    """Index of the router that it calls, modulo how many there are."""

    @property
    def patient(self) -> bool:
        """Whether it waits long enough for any fault to be over."""
        return self.timeout >= PATIENT_SECONDS

    def options(self) -> dict[str, object]:
        """For `Client.generate`."""
        return {
            "max_tokens": self.max_tokens, "seed": self.seed, "temperature": self.temperature,
            "n": self.n, "ignore_eos": True,
        }  # fmt: skip


def draw_requests(rng: random.Random, count: int) -> tuple[RequestPlan, ...]:
    """Mixed requests: shared prefixes, lengths around block boundaries, cancels, deadlines."""
    shared = [rng.randrange(3, 250) for _ in range(64)]
    return tuple(_draw_request(rng, shared) for _ in range(count))


def _draw_request(rng: random.Random, shared: Sequence[int]) -> RequestPlan:
    prefix = shared[: rng.choice((0, 0, BLOCK, 2 * BLOCK + 1, 64))]
    prompt = (*prefix, *(rng.randrange(3, 250) for _ in range(rng.choice(_LENGTHS))))
    plan = RequestPlan(
        prompt=prompt,
        max_tokens=rng.choice((1, 2, 8, 24, 24, 60, 120)),
        seed=rng.randrange(2**32),
        temperature=rng.choice((0.0, 0.9)),
        n=rng.choice((1, 1, 1, 2, 3)),
        start=rng.choice((0.0, 0.0, rng.uniform(0, 0.8))),
        router=rng.randrange(8),
    )
    end = rng.random()
    if end < 0.12:
        return replace(plan, cancel_at=rng.randint(1, plan.max_tokens))
    if end < 0.2:
        return replace(plan, timeout=rng.uniform(0.05, 1.0))
    if end < 0.4:
        return replace(plan, stop_at=rng.random())
    return plan
