"""Translates GGUF metadata to a ModelConfig."""

from baton.gguf import GGUFHeader
from engine.loader.errors import LoadError
from engine.loader.fields import Fields
from engine.model_config import FULL, SLIDING, ModelConfig, RopeConfig

_FAMILIES = ("gemma3", "llama")
# Gemma 3's window pattern and local frequency are fixed by the family; files leave them out.
_GEMMA3_PATTERN = 6
_GEMMA3_LOCAL_THETA = 10_000.0
_GEMMA3_27B_LAYERS = 62


def read_config(header: GGUFHeader, rope_divisors: tuple[float, ...]) -> ModelConfig:
    """The configuration in a file's metadata; `rope_divisors` is its `rope_freqs` tensor.

    Raises LoadError naming the architecture or setting that is not supported.
    """
    architecture = Fields(header.path, header.metadata).text("general.architecture")
    if architecture not in _FAMILIES:
        raise LoadError(
            header.path,
            f"architecture {architecture!r} is not supported; supported are {', '.join(_FAMILIES)}",
        )
    fields = Fields(header.path, header.metadata, f"{architecture}.")
    try:
        if architecture == "llama":
            return _llama(header, fields, rope_divisors)
        return _gemma3(header, fields)
    except ValueError as error:
        raise LoadError(header.path, str(error)) from error


def _llama(header: GGUFHeader, fields: Fields, divisors: tuple[float, ...]) -> ModelConfig:
    fields.refuse("expert_count", unless=(0,), why="mixtures of experts are not supported")
    rope = _rope(fields, 10_000.0)
    head_dim = _head_dim(fields)
    if divisors:
        if len(divisors) != head_dim // 2:
            raise LoadError(header.path, f"tensor rope_freqs.weight has {len(divisors)} values, "
                            f"the model needs {head_dim // 2}")  # fmt: skip
        rope = RopeConfig(rope.theta, "divided", divisors=divisors)
    return _config(
        header,
        fields,
        architecture="llama",
        head_dim=head_dim,
        rope=rope,
        local_rope=rope,
        layer_types=(FULL,) * fields.positive_int("block_count"),
        sliding_window=None,
        attention_scale=head_dim**-0.5,
    )


def _gemma3(header: GGUFHeader, fields: Fields) -> ModelConfig:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.refuse(key, unless=(0.0,), why="softcapping is not supported")
    layers, head_dim = fields.positive_int("block_count"), _head_dim(fields)
    pattern = fields.positive_int("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    # The largest Gemma 3 alone divides by its hidden size per head instead of head_dim.
    scalar = head_dim
    if layers == _GEMMA3_27B_LAYERS:
        scalar = fields.positive_int("embedding_length") // fields.positive_int(
            "attention.head_count"
        )
    return _config(
        header,
        fields,
        architecture="gemma3",
        head_dim=head_dim,
        rope=_rope(fields, 1_000_000.0),
        local_rope=RopeConfig(fields.positive_float("rope.freq_base_swa", _GEMMA3_LOCAL_THETA)),
        layer_types=tuple(SLIDING if (i + 1) % pattern else FULL for i in range(layers)),
        sliding_window=fields.positive_int("attention.sliding_window"),
        attention_scale=scalar**-0.5,
    )


def _head_dim(fields: Fields) -> int:
    default = fields.positive_int("embedding_length") // fields.positive_int("attention.head_count")
    head_dim = fields.even_int("attention.key_length", default)
    for key in ("attention.value_length", "rope.dimension_count"):
        fields.refuse(key, unless=(head_dim,), why=f"only {head_dim}, as the keys, is supported")
    return head_dim


def _rope(fields: Fields, default_theta: float) -> RopeConfig:
    theta = fields.positive_float("rope.freq_base", default_theta)
    kind = fields.text("rope.scaling.type", "none")
    if kind == "none":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", factor=fields.positive_float("rope.scaling.factor"))
    raise fields.fault("rope.scaling.type", f"is {kind!r}; supported are none and linear")


def _config(
    header: GGUFHeader,
    fields: Fields,
    *,
    architecture: str,
    head_dim: int,
    rope: RopeConfig,
    local_rope: RopeConfig,
    layer_types: tuple[str, ...],
    sliding_window: int | None,
    attention_scale: float,
) -> ModelConfig:
    tensors = header.tensors
    if "token_embd.weight" not in tensors:
        raise LoadError(header.path, "tensor token_embd.weight is missing")
    tokenizer = Fields(header.path, header.metadata, "tokenizer.ggml.")
    heads = fields.positive_int("attention.head_count")
    return ModelConfig(
        architecture=architecture,
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=fields.positive_int("embedding_length"),
        layers=fields.positive_int("block_count"),
        heads=heads,
        kv_heads=fields.positive_int("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=fields.positive_int("feed_forward_length"),
        max_position=fields.positive_int("context_length"),
        rms_eps=fields.positive_float("attention.layer_norm_rms_epsilon"),
        rope=rope,
        local_rope=local_rope,
        layer_types=layer_types,
        sliding_window=sliding_window,
        attention_scale=attention_scale,
        tied="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        eos_token_ids=tokenizer.token_ids("eos_token_id") | tokenizer.token_ids("eot_token_id"),
        bos_token_id=min(tokenizer.token_ids("bos_token_id"), default=None),
    )
