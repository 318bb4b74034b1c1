"""Translates config.json to a ModelConfig: a reader for each family, over what all share.

A setting that is absent has the family's default in Transformers.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.loader.errors import LoadError
from engine.loader.fields import Fields
from engine.loader.huggingface_rope import read_rope, rope_of
from engine.model_config import FULL, SLIDING, ExpertsConfig, ModelConfig, RopeConfig


def read_config(path: Path, settings: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
    """The configuration in `settings` (config.json) and `generation` (generation_config.json).

    Raises LoadError naming the architecture or setting that is not supported.
    """
    fields = Fields(path, settings)
    model_type = fields.text("model_type")
    if model_type not in _FAMILIES:
        named = ", ".join(fields.texts("architectures") or [model_type])
        raise LoadError(
            path,
            f"architecture {named} (model_type {model_type!r}) is not "
            f"supported; supported are {', '.join(sorted(_FAMILIES))}",
        )
    eos = Fields(path.with_name("generation_config.json"), generation).token_ids("eos_token_id")
    try:
        config = _FAMILIES[model_type](fields)
    except ValueError as error:
        raise LoadError(path, str(error)) from error
    return replace(config, eos_token_ids=eos) if eos else config


def _common(
    fields: Fields,
    architecture: str,
    *,
    head_dim: int | None = None,
    theta: float = 10_000.0,
    rope: RopeConfig | None = None,
    tied: bool = False,
    attention_bias: bool | None = None,
    rms_eps: float = 1e-6,
    kv_heads: int | None = None,
) -> ModelConfig:
    """A config of full attention, the same rope everywhere and no extras.

    What is given besides `architecture` holds where the file does not say; but `rope` and
    `attention_bias` hold whatever it says.
    """
    hidden, heads = fields.positive_int("hidden_size"), fields.positive_int("num_attention_heads")
    head_dim = fields.even_int("head_dim", head_dim or hidden // heads)
    rope = rope or read_rope(fields, theta)
    layers = fields.layers("num_hidden_layers")
    if attention_bias is None:
        attention_bias = fields.flag("attention_bias", default=False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.positive_int("vocab_size"),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=fields.positive_int("num_key_value_heads", kv_heads or heads),
        head_dim=head_dim,
        intermediate_size=fields.positive_int("intermediate_size"),
        max_position=max(
            fields.positive_int("max_position_embeddings"), rope.stretched_max_position
        ),
        rms_eps=fields.positive_float("rms_norm_eps", rms_eps),
        rope=rope,
        local_rope=rope,
        layer_types=(FULL,) * layers,
        sliding_window=None,
        attention_scale=head_dim**-0.5,
        tied=fields.flag("tie_word_embeddings", default=tied),
        attention_bias=attention_bias,
        attention_out_bias=attention_bias,
        mlp_bias=False,
        eos_token_ids=fields.token_ids("eos_token_id"),
        bos_token_id=min(fields.token_ids("bos_token_id"), default=None),
    )


def _silu_only(fields: Fields) -> None:
    fields.refuse("hidden_act", unless=("silu",), why="only silu is supported")


def _all_sliding(config: ModelConfig, window: int | None) -> ModelConfig:
    if window is None:
        return config
    return replace(config, sliding_window=window, layer_types=(SLIDING,) * config.layers)


def _llama(fields: Fields) -> ModelConfig:
    _silu_only(fields)
    return replace(_common(fields, "llama"), mlp_bias=fields.flag("mlp_bias", default=False))


def _mistral(fields: Fields) -> ModelConfig:
    _silu_only(fields)
    config = _common(fields, "mistral", attention_bias=False, kv_heads=8)
    return _all_sliding(config, fields.window("sliding_window", 4096))


def _mixtral(fields: Fields) -> ModelConfig:
    _silu_only(fields)
    config = _common(fields, "mixtral", attention_bias=False, kv_heads=8, theta=1e6, rms_eps=1e-5)
    experts = ExpertsConfig(
        count=fields.positive_int("num_local_experts", 8),
        per_token=fields.positive_int("num_experts_per_tok", 2),
        intermediate_size=config.intermediate_size,
        normalized=True,
        layers=frozenset(range(config.layers)),
    )
    return _all_sliding(replace(config, experts=experts), fields.window("sliding_window", None))


def _qwen2(fields: Fields) -> ModelConfig:
    _silu_only(fields)
    config = _common(fields, "qwen2", attention_bias=True)
    return _last_layers_slide(fields, replace(config, attention_out_bias=False))


def _qwen3(fields: Fields) -> ModelConfig:
    _silu_only(fields)
    return _last_layers_slide(fields, _common(fields, "qwen3", head_dim=128))


def _last_layers_slide(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Qwen's windows: those of the layers from `max_window_layers` on, if they are used."""
    used = fields.flag("use_sliding_window", default=False)
    window = fields.window("sliding_window", 4096) if used else None
    first = fields.whole("max_window_layers", 28) if window else config.layers
    types = fields.texts("layer_types") or tuple(
        SLIDING if layer >= first else FULL for layer in range(config.layers)
    )
    return replace(config, layer_types=types, sliding_window=window)


def _qwen3_moe(fields: Fields) -> ModelConfig:
    _silu_only(fields)
    config = _common(fields, "qwen3_moe", kv_heads=4)
    step = fields.positive_int("decoder_sparse_step", 1)
    dense = fields.wholes("mlp_only_layers")
    layers = frozenset(
        layer for layer in range(config.layers) if layer not in dense and not (layer + 1) % step
    )
    count = fields.positive_int("num_experts", fields.positive_int("num_local_experts", 128))
    experts = ExpertsConfig(
        count=count,
        per_token=fields.positive_int("num_experts_per_tok", 8),
        intermediate_size=fields.positive_int("moe_intermediate_size", 768),
        normalized=fields.flag("norm_topk_prob", default=False),
        layers=layers,
    )
    used = fields.flag("use_sliding_window", default=False)
    window = fields.window("sliding_window", 4096) if used else None
    return _all_sliding(replace(config, experts=experts), window)


def _gemma(fields: Fields, architecture: str, rope: RopeConfig) -> ModelConfig:
    """What Gemma 2 and Gemma 3 share."""
    fields.refuse(
        "hidden_activation", unless=("gelu_pytorch_tanh",), why="only tanh-GELU is supported"
    )
    fields.refuse(
        "use_bidirectional_attention", unless=(False,), why="only causal attention is supported"
    )
    return replace(
        _common(fields, architecture, head_dim=256, tied=True, rope=rope, kv_heads=4),
        sliding_window=fields.positive_int("sliding_window", 4096),
        attention_scale=fields.positive_float("query_pre_attn_scalar", 256.0) ** -0.5,
    )


def _gemma2(fields: Fields) -> ModelConfig:
    config = _gemma(fields, "gemma2", read_rope(fields, 10_000.0))
    alternating = tuple(FULL if layer % 2 else SLIDING for layer in range(config.layers))
    return replace(
        config,
        layer_types=fields.texts("layer_types") or alternating,
        attention_softcap=fields.number_or_null("attn_logit_softcapping", 50.0),
        final_softcap=fields.number_or_null("final_logit_softcapping", 30.0),
    )


def _gemma3(fields: Fields) -> ModelConfig:
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.refuse(key, why="softcapping is not supported in Gemma 3")
    parameters = fields.part("rope_parameters")
    theta = fields.positive_float("rope_theta", 1_000_000.0)
    local_theta = fields.positive_float("rope_local_base_freq", 10_000.0)
    if parameters is not None:
        rope = rope_of(fields, parameters.part(FULL), theta)
        local_rope = rope_of(fields, parameters.part(SLIDING), local_theta)
    else:
        rope = rope_of(fields, fields.part("rope_scaling"), theta)
        local_rope = RopeConfig(local_theta)
    config = _gemma(fields, "gemma3", rope)
    pattern = fields.positive_int("sliding_window_pattern", 6)
    types = tuple(SLIDING if (layer + 1) % pattern else FULL for layer in range(config.layers))
    return replace(config, local_rope=local_rope, layer_types=fields.texts("layer_types") or types)


_FAMILIES: dict[str, Callable[[Fields], ModelConfig]] = {
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
