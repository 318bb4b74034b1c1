"""What scheduling decisions are made from: workers, what they hold, what a request needs.

Imports only the standard library. Everything is immutable; a snapshot is a value.
"""

from dataclasses import dataclass
from enum import Enum

from baton.naming import Incarnation, RequestId, WorkerId


class Role(Enum):
    """What a worker computes."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Usage:
    """Room for sequences, or room taken."""

    sequences: int
    kv_tokens: int
    """Tokens that KV blocks are set aside for: prompt and the most that can be generated."""

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
    pending: Usage = NOTHING
    """Claims that the worker has not reported yet; not part of what it tells."""

    @property
    def free(self) -> Usage:
        """Capacity less what is running and what is claimed."""
        return self.capacity - self.running - self.pending


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks of the fleet."""

    request_id: RequestId
    attempt: int
    prompt_tokens: int
    max_tokens: int

    @property
    def claim(self) -> Claim:
        return Claim(self.request_id, self.attempt)

    def cost(self, role: Role) -> Usage:
        """Room that the request takes on a worker of `role`: a prefill worker holds the prompt
        and the first token, a decode worker everything that may still come."""
        generated = 1 if role is Role.PREFILL else self.max_tokens
        return Usage(1, self.prompt_tokens + generated)
