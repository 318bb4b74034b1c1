"""A model's shape and arithmetic, in one vocabulary for every family and file format.

The loader translates config.json and GGUF metadata to this; models read nothing else.
Knows no file format and no weights.
"""

from dataclasses import dataclass

FULL = "full_attention"
SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding of one kind of layer."""

    theta: float
    kind: str = "default"
    """`default`, `linear` (all frequencies divided by `factor`), `llama3` (by wavelength) or
    `divided` (each by its own divisor)."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    """Context that the model was first trained for; only `llama3` reads it."""
    divisors: tuple[float, ...] = ()
    """One per pair of dimensions; only `divided` reads them."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything about a model but its weights."""

    architecture: str
    """Family name: `llama` or `gemma3`."""
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    """Most tokens that a sequence may have."""
    rms_eps: float
    rope: RopeConfig
    """Of layers with full attention."""
    local_rope: RopeConfig
    """Of layers with a sliding window."""
    layer_types: tuple[str, ...]
    """`full_attention` or `sliding_attention`, one per layer."""
    sliding_window: int | None
    """Tokens that a query of a sliding layer sees, itself among them."""
    attention_scale: float
    """What query-key products are multiplied with."""
    tied: bool
    """Whether the output head is the embedding table."""
    attention_bias: bool
    mlp_bias: bool
    eos_token_ids: frozenset[int]
    bos_token_id: int | None

    def __post_init__(self) -> None:
        """Raises ValueError where the numbers do not fit together."""
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} KV heads")
        if len(self.layer_types) != self.layers:
            raise ValueError(f"{len(self.layer_types)} layer_types for {self.layers} layers")
        unknown = set(self.layer_types) - {FULL, SLIDING}
        if unknown:
            raise ValueError(f"layer_types {sorted(unknown)} are not supported")
        if SLIDING in self.layer_types and self.sliding_window is None:
            raise ValueError("sliding layers need a sliding_window")

    def window_of(self, layer: int) -> int | None:
        """The layer's window in tokens; None where it attends to everything."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None
