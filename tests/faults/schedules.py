"""Seeded schedules: a workload, and what goes wrong at which step of it.

A schedule is a value: `Schedule.of(seed)` is the same everywhere, so that a failing one is
replayed by its seed. Nothing here runs anything.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

from tests.faults.workload import RequestPlan, draw_requests

PREFILL = ("prefill-0", "prefill-1")
DECODE = ("decode-0", "decode-1")
ROUTERS = ("router-0", "router-1")
PROXIED = ("valkey", "transfer", "prefill-0", "decode-0")
"""Processes that are reached through a proxy; the schedules need it."""
_REQUESTS = 6


class Phase(StrEnum):
    """A moment in the life of a request, as its client can tell."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    HANDOFF = "between prefill and decode"
    FETCHING = "fetching"
    DECODING = "decoding"
    LAST = "last token"
    TIME = "time"


class Kind(StrEnum):
    """What goes wrong."""

    KILL = "killed and restarted"
    TERM = "drained and restarted"
    STOP = "held still"
    AWAY = "killed, and restarted later"
    DELAY = "delayed"
    STALL = "stalled"
    CUT = "cut"
    CORRUPT = "blobs corrupted"


@dataclass(frozen=True)
class Step:
    """One fault, when a request is at a phase."""

    kind: Kind
    target: str
    """Name of a process."""
    phase: Phase
    request: int
    """Index of the request whose phase counts, and whose blobs are corrupted."""
    tokens: int
    """Tokens of choice 0 that its client has by then; -1: none is needed, it is being sent."""
    delay: float
    """Seconds after that."""
    seconds: float
    """How long it lasts, where it lasts."""

    def __str__(self) -> str:
        when = f"{self.phase} of request {self.request}"
        if self.phase is Phase.TIME:
            when = "the start"
        lasting = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.target} {self.kind}{lasting}, {self.delay * 1000:.0f} ms after {when}"


@dataclass(frozen=True)
class Schedule:
    """Requests, and what happens meanwhile."""

    seed: int
    requests: tuple[RequestPlan, ...]
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, seed: int) -> "Schedule":
        """The schedule of a seed."""
        rng = random.Random(f"faults-{seed}")
        requests = draw_requests(rng, _REQUESTS)
        count = rng.choice((1, 1, 2, 2, 3))
        return cls(seed, requests, tuple(_draw_step(rng, requests) for _ in range(count)))

    @property
    def survivable(self) -> bool:
        """Whether nothing that happens may cost a request that waits long enough."""
        for role in (PREFILL, DECODE, ROUTERS):
            if {step.target for step in self.steps} >= set(role):
                return False
        return True

    def __str__(self) -> str:
        lines = [f"schedule {self.seed}"]
        lines += [f"  request {i}: {_shown(plan)}" for i, plan in enumerate(self.requests)]
        return "\n".join([*lines, *(f"  step: {step}" for step in self.steps)])


def _shown(plan: RequestPlan) -> str:
    extras = {
        "n": plan.n if plan.n > 1 else None,
        "temperature": plan.temperature or None,
        "leaves at token": plan.cancel_at,
        "timeout": None if plan.patient else round(plan.timeout, 2),
        "stop string at": None if plan.stop_at is None else round(plan.stop_at, 2),
        "start": round(plan.start, 2) or None,
    }
    further = ", ".join(f"{name} {value}" for name, value in extras.items() if value is not None)
    shown = f"{len(plan.prompt)} + {plan.max_tokens} tokens, router {plan.router % len(ROUTERS)}"
    return f"{shown}, {further}" if further else shown


def _draw_step(rng: random.Random, requests: tuple[RequestPlan, ...]) -> Step:
    kind, target, seconds = _draw_fault(rng)
    phase = rng.choice(tuple(Phase))
    request = rng.randrange(len(requests))
    if kind is Kind.CORRUPT:
        phase = rng.choice((Phase.HANDOFF, Phase.FETCHING, Phase.DECODING))
    tokens, delay = _draw_moment(rng, phase, requests[request])
    return Step(kind, target, phase, request, tokens, delay, seconds)


def _draw_fault(rng: random.Random) -> tuple[Kind, str, float]:
    worker = rng.choice((*PREFILL, *DECODE))
    short = rng.uniform(0.2, 2.0)
    return rng.choices(
        (
            (Kind.KILL, worker, 0.0),
            (Kind.TERM, worker, 0.0),
            (Kind.STOP, worker, short),
            (Kind.STOP, worker, 5.0),
            (rng.choice((Kind.KILL, Kind.TERM)), rng.choice(ROUTERS), 0.0),
            (Kind.STOP, rng.choice(ROUTERS), short),
            (Kind.KILL, "transfer", 0.0),
            (Kind.STOP, "transfer", short),
            (rng.choice((Kind.DELAY, Kind.STALL, Kind.CUT)), "transfer", short),
            (rng.choice((Kind.DELAY, Kind.CUT)), rng.choice(("prefill-0", "decode-0")), short),
            (Kind.CORRUPT, "transfer", 0.0),
            (Kind.KILL, "valkey", 0.0),
            (Kind.AWAY, "valkey", short),
            (rng.choice((Kind.STOP, Kind.STALL, Kind.CUT)), "valkey", short),
        ),
        (5, 3, 3, 1, 2, 1, 2, 1, 2, 2, 2, 2, 1, 2),
    )[0]


def _draw_moment(rng: random.Random, phase: Phase, plan: RequestPlan) -> tuple[int, float]:
    """Tokens that must have come, and seconds after that."""
    last = plan.max_tokens
    match phase:
        case Phase.QUEUED:
            return -1, 0.0
        case Phase.PREFILLING:
            return -1, rng.uniform(0.002, 0.02)
        case Phase.HANDOFF:
            return 1, 0.0
        case Phase.FETCHING:
            return 1, rng.uniform(0.001, 0.005)
        case Phase.DECODING:
            return rng.randint(1, max(1, last - 2)), 0.0
        case Phase.LAST:
            return max(1, last - 1), 0.0
        case Phase.TIME:
            return -1, rng.uniform(0.0, 0.8)
