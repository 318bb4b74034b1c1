"""One request on its way through the simulated fleet."""

from dataclasses import dataclass

from baton.policy.fleet import GROWTH_TOKENS, Task


@dataclass(slots=True, eq=False)
class Life:
    """What is known of a request; workers and dispatchers change it."""

    number: int
    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    """Known to the simulation alone."""
    max_tokens: int
    """What its client allows."""
    blocks: tuple[int, ...]
    ttft_target_s: float
    itl_target_s: float
    batch: bool
    tenant: str
    priority: int = 0
    task: Task = Task.WHOLE
    emitted: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    ended_s: float | None = None
    cached_tokens: int = 0
    """Of its prompt, found where that was computed."""
    left_tokens: int = 0
    """Prompt tokens still to compute, and below those that have KV."""
    done_tokens: int = 0
    promised_tokens: int = 0
    """KV room that its worker set aside."""
    finish_step: int = 0
    """Decode step of its worker with which it ends."""
    refused: bool = False
    local: bool = False
    attempts: int = 0
    preempted: int = 0
    moved: int = 0
    """Times that its worker had to leave while it decoded."""
    decode_since_s: float = 0.0

    @property
    def known_tokens(self) -> int:
        return self.prompt_tokens + self.emitted

    @property
    def life_tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens

    @property
    def room_tokens(self) -> int:
        """KV room that it takes at first for its task."""
        if self.task is Task.PREFILL:
            return self.prompt_tokens + 1
        return min(self.life_tokens, self.known_tokens + GROWTH_TOKENS)

    def holds_ttft(self) -> bool:
        return self.first_s is not None and self.first_s - self.arrived_s <= self.ttft_target_s

    def holds_itl(self) -> bool:
        return self.ended_s is not None and self.mean_itl_s <= self.itl_target_s

    @property
    def mean_itl_s(self) -> float:
        """Mean time between its tokens; 0 where there is one."""
        if self.first_s is None or self.output_tokens < 2:
            return 0.0
        return (self.last_s - self.first_s) / (self.output_tokens - 1)
