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
    """`default`, `linear` (all frequencies divided by `factor`), `dynamic` (slowed past the
    original context, the more the further), `llama3` (by wavelength), `yarn` (by turns within
    the original context) or `divided` (each by its own divisor)."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    """Context that the model was first trained for; `dynamic`, `llama3` and `yarn` read it."""
    divisors: tuple[float, ...] = ()
    """One per pair of dimensions; only `divided` reads them."""
    attention_factor: float = 1.0
    """What cosines and sines are multiplied with; other than one only for `yarn`."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Whether `yarn`'s ramp starts and ends at whole pairs of dimensions."""

    @property
    def stretched_max_position(self) -> int:
        """The context that the scaling reaches; 0 where it says nothing of it."""
        stretches = self.kind in ("dynamic", "yarn")
        return int(self.original_max_position * self.factor) if stretches else 0


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Feed-forward blocks that are mixtures of experts."""

    count: int
    per_token: int
    """Experts that each token goes to."""
    intermediate_size: int
    """Of one expert."""
    normalized: bool
    """Whether a token's shares of its experts add up to one."""
    layers: frozenset[int]
    """The layers that have experts; the others are dense."""

    def __post_init__(self) -> None:
        """Raises ValueError where the numbers do not fit together."""
        if self.per_token > self.count:
            raise ValueError(f"{self.per_token} experts per token are more than {self.count}")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything about a model but its weights."""

    architecture: str
    """Family name: a key of `engine.models.FAMILIES`."""
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
    """Whether queries, keys and values have biases."""
    mlp_bias: bool
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    attention_out_bias: bool = False
    attention_softcap: float | None = None
    """Bound on the size of query-key products, approached by a tanh."""
    final_softcap: float | None = None
    """The same of logits."""
    experts: ExpertsConfig | None = None

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
