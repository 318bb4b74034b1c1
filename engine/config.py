"""The engine's configuration: frozen, passed whole. It knows no environment and no files."""

from dataclasses import dataclass

import torch

from engine.errors import ConfigError

GIBIBYTE = 1 << 30


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine runs its model."""

    block_size: int = 16
    """Tokens of a KV block."""
    kv_bytes: int = GIBIBYTE
    """Memory of the KV pools of all groups together."""
    max_sequences: int = 32
    """Most sequences in the engine at once; small pools hold fewer, see `Engine.capacity`."""
    max_step_tokens: int = 256
    """Most tokens computed in one step: one for each decoding sequence, the rest in chunks of
    prompts."""
    checkpoint_blocks: int = 32
    """Window groups' blocks are exported at every so many blocks, and at the prompt's end."""
    growth_tokens: int | None = None
    """How many tokens beyond those it has a sequence gets room for, when it is admitted and
    each time that it outgrows its room; where none is left, a sequence is preempted. None: room
    for its whole life, so that none ever is. A sequence with `Request.hand_over_after` always
    gets that."""
    dtype: torch.dtype = torch.bfloat16
    """Number format of weights and KV."""
    device: str = "cpu"
    threads: int | None = None
    """Compute threads. None: as many as torch uses anyway."""

    def __post_init__(self) -> None:
        for name in ("block_size", "kv_bytes", "max_sequences", "max_step_tokens",
                     "checkpoint_blocks"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("threads", "growth_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.max_step_tokens < self.max_sequences:
            raise ConfigError(
                f"max_step_tokens ({self.max_step_tokens}) must be at least max_sequences "
                f"({self.max_sequences}): each decoding sequence takes one token of a step"
            )
