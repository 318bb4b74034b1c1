"""Translates GGUF metadata to a ModelConfig: a reader for each architecture."""

from collections.abc import Callable
from dataclasses import replace

from baton.gguf import GGUFHeader
from engine.loader.errors import LoadError
from engine.loader.fields import Fields
from engine.model_config import FULL, SLIDING, ExpertsConfig, ModelConfig, RopeConfig
from engine.rope import yarn_attention_factor

# Gemma's window patterns and Gemma 3's local frequency are fixed by the family; files leave
# them out.
_GEMMA3_PATTERN = 6
_GEMMA3_LOCAL_THETA = 10_000.0
_GEMMA2_27B_LAYERS = 46
_GEMMA3_27B_LAYERS = 62


def read_config(header: GGUFHeader, rope_divisors: tuple[float, ...]) -> ModelConfig:
    """The configuration in a file's metadata; `rope_divisors` is its `rope_freqs` tensor.

    Raises LoadError naming the architecture or setting that is not supported.
    """
    architecture = Fields(header.path, header.metadata).text("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise LoadError(
            header.path,
            f"architecture {architecture!r} is not supported; supported are "
            f"{', '.join(sorted(_ARCHITECTURES))}",
        )
    fields = Fields(header.path, header.metadata, f"{architecture}.")
    try:
        config = _common(header, fields, architecture, rope_divisors)
        return _ARCHITECTURES[architecture](fields, config)
    except ValueError as error:
        raise LoadError(header.path, str(error)) from error


def _common(
    header: GGUFHeader, fields: Fields, architecture: str, divisors: tuple[float, ...]
) -> ModelConfig:
    """A config of full attention, the same rope everywhere and no extras."""
    tensors = header.tensors
    if "token_embd.weight" not in tensors:
        raise LoadError(header.path, "tensor token_embd.weight is missing")
    tokenizer = Fields(header.path, header.metadata, "tokenizer.ggml.")
    heads, layers = fields.positive_int("attention.head_count"), fields.layers("block_count")
    head_dim = _head_dim(fields)
    rope = _rope(header, fields, head_dim, divisors)
    return ModelConfig(
        architecture=architecture,
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=fields.positive_int("embedding_length"),
        layers=layers,
        heads=heads,
        kv_heads=fields.positive_int("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=_intermediate_size(fields),
        max_position=max(fields.positive_int("context_length"), rope.stretched_max_position),
        rms_eps=fields.positive_float("attention.layer_norm_rms_epsilon"),
        rope=rope,
        local_rope=rope,
        layer_types=(FULL,) * layers,
        sliding_window=None,
        attention_scale=head_dim**-0.5,
        tied="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        attention_out_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        eos_token_ids=tokenizer.token_ids("eos_token_id") | tokenizer.token_ids("eot_token_id"),
        bos_token_id=min(tokenizer.token_ids("bos_token_id"), default=None),
    )


def _llama(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Llama itself, and Mistral and Mixtral, which are stored under its name."""
    if fields.get("attention.sliding_window") is not None:
        window = fields.positive_int("attention.sliding_window")
        config = replace(
            config,
            architecture="mistral",
            sliding_window=window,
            layer_types=(SLIDING,) * config.layers,
        )
    if not fields.get("expert_count"):
        return config
    experts = _experts(fields, config, config.intermediate_size)
    return replace(config, architecture="mixtral", experts=experts)


def _dense(fields: Fields, config: ModelConfig) -> ModelConfig:
    fields.refuse("expert_count", unless=(0,), why="the architecture has no experts")
    return config


def _qwen3moe(fields: Fields, config: ModelConfig) -> ModelConfig:
    inner = fields.positive_int("expert_feed_forward_length")
    return replace(config, architecture="qwen3_moe", experts=_experts(fields, config, inner))


def _experts(fields: Fields, config: ModelConfig, inner: int) -> ExpertsConfig:
    """Every layer has experts, and shares add up to one: what these architectures are."""
    return ExpertsConfig(
        count=fields.positive_int("expert_count"),
        per_token=fields.positive_int("expert_used_count"),
        intermediate_size=inner,
        normalized=True,
        layers=frozenset(range(config.layers)),
    )


def _gemma2(fields: Fields, config: ModelConfig) -> ModelConfig:
    return replace(
        config,
        layer_types=tuple(FULL if i % 2 else SLIDING for i in range(config.layers)),
        sliding_window=fields.positive_int("attention.sliding_window", 4096),
        attention_scale=_gemma_scale(config, _GEMMA2_27B_LAYERS),
        attention_softcap=fields.positive_float("attn_logit_softcapping", 50.0),
        final_softcap=fields.positive_float("final_logit_softcapping", 30.0),
    )


def _gemma3(fields: Fields, config: ModelConfig) -> ModelConfig:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.refuse(key, unless=(0.0,), why="softcapping is not supported in Gemma 3")
    pattern = fields.positive_int("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    return replace(
        config,
        local_rope=RopeConfig(fields.positive_float("rope.freq_base_swa", _GEMMA3_LOCAL_THETA)),
        layer_types=tuple(SLIDING if (i + 1) % pattern else FULL for i in range(config.layers)),
        sliding_window=fields.positive_int("attention.sliding_window"),
        attention_scale=_gemma_scale(config, _GEMMA3_27B_LAYERS),
    )


def _gemma_scale(config: ModelConfig, layers_of_27b: int) -> float:
    """The largest Gemmas alone divide by hidden size per head instead of head_dim."""
    if config.layers == layers_of_27b:
        return float((config.hidden_size // config.heads) ** -0.5)
    return config.attention_scale


def _head_dim(fields: Fields) -> int:
    default = fields.positive_int("embedding_length") // fields.positive_int("attention.head_count")
    head_dim = fields.even_int("attention.key_length", default)
    for key in ("attention.value_length", "rope.dimension_count"):
        fields.refuse(key, unless=(head_dim,), why=f"only {head_dim}, as the keys, is supported")
    return head_dim


def _intermediate_size(fields: Fields) -> int:
    """Of dense layers; files of experts alone may leave it out, and nothing reads it then."""
    inner = fields.get("expert_feed_forward_length")
    return fields.positive_int("feed_forward_length", inner)


def _rope(
    header: GGUFHeader, fields: Fields, head_dim: int, divisors: tuple[float, ...]
) -> RopeConfig:
    gemma3 = header.metadata["general.architecture"] == "gemma3"
    theta = fields.positive_float("rope.freq_base", 1_000_000.0 if gemma3 else 10_000.0)
    if divisors:
        if len(divisors) != head_dim // 2:
            raise LoadError(header.path, f"tensor rope_freqs.weight has {len(divisors)} values, "
                            f"the model needs {head_dim // 2}")  # fmt: skip
        return RopeConfig(theta, "divided", divisors=divisors)
    kind = fields.text("rope.scaling.type", "none")
    if kind == "none":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, factor=fields.positive_float("rope.scaling.factor"))
    if kind == "yarn":
        factor = fields.positive_float("rope.scaling.factor")
        sharpness = fields.positive_float("rope.scaling.attn_factor", 1.0)
        return RopeConfig(
            theta,
            kind,
            factor=factor,
            original_max_position=fields.positive_int(
                "rope.scaling.original_context_length", fields.positive_int("context_length")
            ),
            attention_factor=sharpness * yarn_attention_factor(factor),
            beta_fast=fields.positive_float("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.positive_float("rope.scaling.yarn_beta_slow", 1.0),
        )
    raise fields.fault("rope.scaling.type", f"is {kind!r}; supported are none, linear and yarn")


_ARCHITECTURES: dict[str, Callable[[Fields, ModelConfig], ModelConfig]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "llama": _llama,
    "qwen2": _dense,
    "qwen3": _dense,
    "qwen3moe": _qwen3moe,
}
