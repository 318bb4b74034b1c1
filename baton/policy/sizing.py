"""How many workers a load needs.

Pure arithmetic on a load, a worker's cost model and the targets. Prefill is a queue with several
servers: the mean wait is Sakasegawa's approximation (1977) with the variation factor of Allen and
Cunneen (1978), its tail taken as exponential. Decode is Little's law with as many sequences a
worker as the inter-token latency and the KV room allow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist

from baton.policy.cost import StepCost
from baton.policy.fleet import GROWTH_TOKENS, Role, Worker

MEASURED = 0.5
"""A cost model with a larger relative error is not to be counted on where there are others."""
MANY = 1_000_000
"""Workers from which on it does not matter how many more there are."""
MAX_SPREAD = 4.0
"""Most that the squared variation of prompts' work is taken for."""
ITL_SHARE = 0.9
"""Share of the inter-token target that a step may take: the rest is for the handoff and noise."""
KV_SHARE = 0.85
"""Share of the KV room that may be taken: it is never spread evenly."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked of a fleet, a second."""

    requests: float = 0.0
    new_tokens: float = 0.0
    """Prompt tokens to compute."""
    new_pairs: float = 0.0
    """(token, earlier token or itself) pairs of those."""
    sequences: float = 0.0
    """Sequences that begin to decode."""
    output_tokens: float = 0.0
    output_context: float = 0.0
    """Context tokens, summed over the output tokens."""
    prompt_tokens: float = 0.0
    """Cached or not."""

    def __mul__(self, factor: float) -> "Traffic":
        return Traffic(*(factor * value for value in self.values()))

    def values(self) -> tuple[float, ...]:
        """In the order of the fields."""
        return tuple(getattr(self, name) for name in NAMES)

    @property
    def mean_new_tokens(self) -> float:
        """Of a request."""
        return self.new_tokens / self.requests if self.requests > 0 else 0.0

    @property
    def spread(self) -> float:
        """Squared variation of the prompts' lengths. The pairs tell it, since their mean is half
        the mean square where nothing is cached; cached tokens make it seem larger."""
        if self.new_tokens <= 0:
            return 0.0
        spread = 2 * self.new_pairs * self.requests / self.new_tokens**2 - 1
        return min(MAX_SPREAD, max(0.0, spread))

    @property
    def mean_context(self) -> float:
        """Of a decoding sequence."""
        return self.output_context / self.output_tokens if self.output_tokens > 0 else 0.0


NAMES = tuple(field.name for field in fields(Traffic))


@dataclass(frozen=True, slots=True)
class Profile:
    """What one worker of a pool can do."""

    cost: StepCost
    step_tokens: int
    sequences: int
    kv_tokens: int
    measured: bool = True
    """Whether the cost is of steps, not a prior."""

    @classmethod
    def of(cls, workers: Sequence[Worker], role: Role) -> "Profile | None":
        """The worker of the role whose speed is the median, among those that have measured
        themselves if there are any. None: there is no worker that has room for anything."""
        known = [
            worker
            for worker in workers
            if worker.role is role and min(worker.capacity.sequences, worker.capacity.kv_tokens) > 0
        ]
        sure = [worker for worker in known if worker.cost.relative_error <= MEASURED]
        ranked = sorted(sure or known, key=lambda one: (_speed(one), one.worker_id))
        if not ranked:
            return None
        middle = ranked[len(ranked) // 2]
        capacity = middle.capacity
        return cls(
            *(middle.cost, middle.step_tokens, capacity.sequences, capacity.kv_tokens),
            measured=bool(sure),
        )

    def prompt_s(self, traffic: Traffic) -> float:
        """Seconds to compute a mean prompt with nothing beside it."""
        if traffic.requests <= 0:
            return 0.0
        cost, tokens = self.cost, traffic.mean_new_tokens
        steps = max(1, math.ceil(tokens / max(1, self.step_tokens)))
        pairs = traffic.new_pairs / traffic.requests
        return steps * cost.base_s + cost.prompt_token_s * tokens + cost.prompt_pair_s * pairs

    def batch(self, traffic: Traffic, itl_target_s: float) -> int:
        """Sequences that one worker decodes at once."""
        room = self.kv_tokens / (traffic.mean_context + GROWTH_TOKENS)
        most = max(1, min(self.sequences, math.floor(room)))
        return self.cost.sequences_within(ITL_SHARE * itl_target_s, traffic.mean_context, most)


@dataclass(frozen=True, slots=True)
class Targets:
    """What the pools are to hold."""

    ttft_s: float
    itl_s: float
    attainment: float
    """Share of the requests that is to hold them."""


@dataclass(frozen=True, slots=True)
class Need:
    """Workers that a load needs, and what that comes of."""

    workers: int
    busy: float
    """Workers whose whole time it takes; the rest is so that nobody waits too long."""
    batch: int = 0
    """Sequences of each, for decode."""
    by_room: bool = False
    """Whether it is the KV room that so many are for."""


def prefill_need(traffic: Traffic, profile: Profile, targets: Targets) -> Need:
    """The fewest prefill workers with which few enough first tokens are late."""
    if traffic.requests <= 0:
        return Need(0, 0.0)
    cost, alone_s = profile.cost, profile.prompt_s(traffic)
    steps = traffic.mean_new_tokens / max(1, profile.step_tokens)
    # Alone a prompt's last step is hardly ever full; where it is busy, steps are.
    busy = traffic.requests * (alone_s - cost.base_s * (max(1, math.ceil(steps)) - steps))
    slack_s = max(targets.ttft_s - alone_s, alone_s)
    spread = traffic.spread
    workers = math.floor(busy) + 1
    # Of so many, hardly any are there for the waits alone.
    while workers < MANY and late(workers, busy, alone_s, spread, slack_s) > 1 - targets.attainment:
        workers += 1
    return Need(workers, busy)


def late(workers: int, busy: float, work_s: float, spread: float, slack_s: float) -> float:
    """Share of the requests that wait for longer than `slack_s` for one of `workers`, when
    they come at random, `busy` workers' time is asked for, and each takes `work_s` with so
    much squared variation."""
    if busy >= workers:
        return 1.0
    waits = (busy / workers) ** (math.sqrt(2 * (workers + 1)) - 1)
    wait_s = (1 + spread) / 2 * work_s / (workers - busy)
    return waits * math.exp(-slack_s / wait_s) if wait_s > 0 else 0.0


def decode_need(traffic: Traffic, profile: Profile, targets: Targets) -> Need:
    """The fewest decode workers in whose batches the sequences have a place but for few
    moments: how many there are at once varies as in a Poisson process."""
    if traffic.output_tokens <= 0:
        return Need(0, 0.0)
    batch = profile.batch(traffic, targets.itl_s)
    step_s = profile.cost.decode_step_s(batch, batch * traffic.mean_context)
    places = traffic.output_tokens * step_s
    sure = NormalDist().inv_cdf(targets.attainment)
    by_places = (places + sure * math.sqrt(places)) / batch
    by_room = _kv_tokens(traffic, profile, places, sure) / (KV_SHARE * profile.kv_tokens)
    workers = max(1, math.ceil(max(by_places, by_room)))
    return Need(workers, places / batch, batch, by_room > by_places)


def _kv_tokens(traffic: Traffic, profile: Profile, places: float, sure: float) -> float:
    """KV room that sequences have but for few moments: those that decode, and those whose
    prompt is computed elsewhere while their room is claimed already. Long prompts take long."""
    size = traffic.mean_context + GROWTH_TOKENS
    spread = traffic.spread
    coming = traffic.requests * profile.prompt_s(traffic) * (1 + spread)
    coming_size = traffic.prompt_tokens / max(traffic.requests, 1e-9) + GROWTH_TOKENS
    variance = places * size**2 + coming * coming_size**2 * (1 + spread)
    return places * size + coming * coming_size + sure * math.sqrt(variance)


def _speed(worker: Worker) -> float:
    if worker.role is Role.PREFILL:
        return worker.cost.prefill_s(worker.step_tokens, worker.step_tokens, worker.step_tokens)
    return worker.cost.decode_step_s(32, 32 * 1024)
