"""What scheduling decisions are made from: workers, what they hold, what a request needs.

Imports only the standard library. Everything is immutable; a snapshot is a value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from baton.naming import Incarnation, RequestId, WorkerId
from baton.policy.cost import PRIORS, StepCost

GROWTH_TOKENS = 256
"""Output tokens that room is set aside for when a sequence begins; it asks for more as it grows,
and moves elsewhere with its KV where there is none."""


class Role(Enum):
    """What a worker is there for."""

    PREFILL = "prefill"
    DECODE = "decode"


class Task(Enum):
    """What a worker is to do for a request."""

    PREFILL = "prefill"
    """Compute the prompt and the first token, then hand over."""
    DECODE = "decode"
    """Go on from a handoff."""
    WHOLE = "whole"
    """Compute the prompt and go on, all by itself."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Room for sequences, or room taken."""

    sequences: int
    kv_tokens: int
    """Tokens that KV blocks are set aside for."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.sequences + other.sequences, self.kv_tokens + other.kv_tokens)

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(self.sequences - other.sequences, self.kv_tokens - other.kv_tokens)

    def fits_in(self, room: "Usage") -> bool:
        """Whether this much can be taken from `room`."""
        return self.sequences <= room.sequences and self.kv_tokens <= room.kv_tokens


NOTHING = Usage(0, 0)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model allows on a worker."""

    name: str
    vocab_size: int
    context_tokens: int
    """Most tokens of prompt and output together."""
    eos_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Claim:
    """A request's short hold on a worker's room."""

    request_id: RequestId
    attempt: int


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker is at, as it tells."""

    prompt_backlog_s: float = 0.0
    """Predicted time to compute the prompts that it has taken."""
    context_tokens: int = 0
    """Tokens in the contexts of the sequences that decode."""
    itl_target_s: float | None = None
    """Tightest inter-token latency target of its sequences; None: none has one."""
    sequence_limit: int | None = None
    """Sequences that it would take in all, so that the tightest target holds; None: as many as
    its capacity."""
    decode_step_s: float = 0.0
    """Mean of its recent decode steps; 0: there was none."""


IDLE = Load()


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as its last heartbeat told it, and what is claimed on it."""

    worker_id: WorkerId
    incarnation: Incarnation
    role: Role
    address: str
    transfer_address: str
    layout_fingerprint: str
    model: ModelLimits
    capacity: Usage
    running: Usage
    taken: frozenset[Claim]
    """Claims that `running` counts."""
    draining: bool
    pid: int
    cost: StepCost = PRIORS["cpu"]
    load: Load = IDLE
    prompt_lookahead_s: float = 1.0
    """Prompt work that it wants to be given ahead, so that it is just busy."""
    step_tokens: int = 256
    """Most tokens of one step."""
    block_tokens: int = 16
    """Tokens per KV block."""
    index_group: int = 0
    """KV group whose blocks it tells of."""
    pending: Usage = NOTHING
    """Claims that the worker has not reported yet; not part of what it tells."""
    pending_prompt_s: float = 0.0
    """Prompt work of those claims."""

    @property
    def sequence_limit(self) -> int:
        """Sequences that it takes in all."""
        limit = self.load.sequence_limit
        most = self.capacity.sequences
        return most if limit is None else max(1, min(limit, most))

    @property
    def free(self) -> Usage:
        """What it takes, less what is running and what is claimed."""
        running, pending = self.running, self.pending
        return Usage(
            self.sequence_limit - running.sequences - pending.sequences,
            self.capacity.kv_tokens - running.kv_tokens - pending.kv_tokens,
        )

    @property
    def prompt_start_s(self) -> float:
        """Seconds until it begins with a prompt that it is given now."""
        return self.load.prompt_backlog_s + self.pending_prompt_s

    def wants_prompts(self, more_s: float = 0.0) -> bool:
        """Whether it has less prompt work than it wants to have ahead, and `more_s` besides."""
        return self.prompt_start_s < self.prompt_lookahead_s + more_s

    @property
    def sequences(self) -> int:
        """Sequences that it has or is about to have. What was claimed may have ended before the
        worker told of it."""
        return max(0, self.running.sequences + self.pending.sequences)

    @property
    def context_tokens(self) -> float:
        """Tokens in the contexts of those sequences, as far as they are known to decode."""
        known = max(1, self.running.sequences)
        return self.load.context_tokens * max(1.0, self.sequences / known)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks of the fleet."""

    request_id: RequestId
    attempt: int
    prompt_tokens: int
    max_tokens: int
    emitted_tokens: int = 0
    """Output tokens that there are already, for a sequence that goes on."""
    itl_target_s: float | None = None
    """Inter-token latency to hold; None: any will do."""
    cached: Mapping[WorkerId, int] = field(default_factory=dict)
    """Tokens that workers are thought to have cached, or to find on their hosts."""

    @property
    def claim(self) -> Claim:
        return Claim(self.request_id, self.attempt)

    @property
    def known_tokens(self) -> int:
        """Prompt and output so far."""
        return self.prompt_tokens + self.emitted_tokens

    @property
    def life_tokens(self) -> int:
        """Prompt and the most that can be generated."""
        return self.prompt_tokens + self.max_tokens

    def cost(self, task: Task) -> Usage:
        """Room that the request takes at first: a prompt to be handed over takes itself and a
        token, anything else its tokens and some to grow."""
        if task is Task.PREFILL:
            return Usage(1, self.prompt_tokens + 1)
        return Usage(1, min(self.life_tokens, self.known_tokens + GROWTH_TOKENS))

    def prompt_s(self, task: Task, worker: Worker) -> float:
        """Predicted seconds to compute on `worker` what is not cached there."""
        if task is Task.DECODE:
            return 0.0
        new = self.new_tokens(worker)
        return worker.cost.prefill_s(new, self.known_tokens - new, worker.step_tokens)

    def new_tokens(self, worker: Worker) -> int:
        """Tokens that `worker` has to compute: one at least."""
        return max(1, self.known_tokens - self.cached.get(worker.worker_id, 0))
