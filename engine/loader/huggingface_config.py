"""Translates config.json to a ModelConfig.

Reads the rope settings both as Transformers 5 writes them (`rope_parameters`) and as older
versions did (`rope_theta`, `rope_scaling`, `rope_local_base_freq`).
"""

from pathlib import Path
from typing import Any

from engine.loader.errors import LoadError
from engine.loader.fields import Fields
from engine.model_config import FULL, SLIDING, ModelConfig, RopeConfig

_FAMILIES = {"llama": "llama", "gemma3_text": "gemma3"}


def read_config(path: Path, settings: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
    """The configuration in `settings` (config.json) and `generation` (generation_config.json).

    Raises LoadError naming the architecture or setting that is not supported.
    """
    fields = Fields(path, settings)
    model_type = fields.text("model_type")
    if model_type not in _FAMILIES:
        named = fields.get("architectures") or [model_type]
        raise LoadError(
            path,
            f"architecture {', '.join(map(str, named))} (model_type {model_type!r}) is not "
            f"supported; supported are {', '.join(sorted(_FAMILIES))}",
        )
    fields.refuse("quantization_config", why="quantized checkpoints are not supported")
    eos = Fields(path.with_name("generation_config.json"), generation).token_ids("eos_token_id")
    eos = eos or fields.token_ids("eos_token_id")
    try:
        if model_type == "llama":
            return _llama(fields, eos)
        return _gemma3(fields, eos)
    except ValueError as error:
        raise LoadError(path, str(error)) from error


def _llama(fields: Fields, eos: frozenset[int]) -> ModelConfig:
    fields.refuse("hidden_act", unless=("silu",), why="only silu is supported")
    layers = fields.positive_int("num_hidden_layers")
    rope = _rope(
        fields.part("rope_parameters") or fields.part("rope_scaling"),
        fields.positive_float("rope_theta", 10_000.0),
    )
    head_dim = _head_dim(fields)
    return _config(
        fields,
        architecture="llama",
        head_dim=head_dim,
        rope=rope,
        local_rope=rope,
        layer_types=(FULL,) * layers,
        sliding_window=None,
        attention_scale=head_dim**-0.5,
        tied=fields.flag("tie_word_embeddings", default=False),
        mlp_bias=fields.flag("mlp_bias", default=False),
        eos=eos,
    )


def _gemma3(fields: Fields, eos: frozenset[int]) -> ModelConfig:
    fields.refuse(
        "hidden_activation", unless=("gelu_pytorch_tanh",), why="only tanh-GELU is supported"
    )
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.refuse(key, why="softcapping is not supported")
    fields.refuse(
        "use_bidirectional_attention", unless=(False,), why="only causal attention is supported"
    )
    layers = fields.positive_int("num_hidden_layers")
    parameters = fields.part("rope_parameters")
    theta = fields.positive_float("rope_theta", 1_000_000.0)
    local_theta = fields.positive_float("rope_local_base_freq", 10_000.0)
    if parameters is not None:
        rope = _rope(parameters.part(FULL), theta)
        local_rope = _rope(parameters.part(SLIDING), local_theta)
    else:
        rope, local_rope = _rope(fields.part("rope_scaling"), theta), RopeConfig(local_theta)
    return _config(
        fields,
        architecture="gemma3",
        head_dim=fields.even_int("head_dim", 256),
        rope=rope,
        local_rope=local_rope,
        layer_types=_gemma3_layer_types(fields, layers),
        sliding_window=fields.positive_int("sliding_window", 4096),
        attention_scale=fields.positive_float("query_pre_attn_scalar", 256.0) ** -0.5,
        tied=fields.flag("tie_word_embeddings", default=True),
        mlp_bias=False,
        eos=eos,
    )


def _gemma3_layer_types(fields: Fields, layers: int) -> tuple[str, ...]:
    named = fields.texts("layer_types")
    if named is not None:
        return named
    pattern = fields.positive_int("sliding_window_pattern", 6)
    return tuple(SLIDING if (layer + 1) % pattern else FULL for layer in range(layers))


def _head_dim(fields: Fields) -> int:
    hidden, heads = fields.positive_int("hidden_size"), fields.positive_int("num_attention_heads")
    return fields.even_int("head_dim", hidden // heads)


def _rope(part: Fields | None, theta: float) -> RopeConfig:
    """The rope of one kind of layer; `theta` holds where `part` does not say."""
    if part is None:
        return RopeConfig(theta)
    theta = part.positive_float("rope_theta", theta)
    part.refuse("partial_rotary_factor", unless=(1, 1.0), why="partial rotation is not supported")
    kind = part.text("rope_type", part.text("type", "default"))
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", factor=part.positive_float("factor"))
    if kind == "llama3":
        return RopeConfig(
            theta,
            "llama3",
            factor=part.positive_float("factor"),
            low_freq_factor=part.positive_float("low_freq_factor"),
            high_freq_factor=part.positive_float("high_freq_factor"),
            original_max_position=part.positive_int("original_max_position_embeddings"),
        )
    raise part.fault("rope_type", f"is {kind!r}; supported are default, linear and llama3")


def _config(
    fields: Fields,
    *,
    architecture: str,
    head_dim: int,
    rope: RopeConfig,
    local_rope: RopeConfig,
    layer_types: tuple[str, ...],
    sliding_window: int | None,
    attention_scale: float,
    tied: bool,
    mlp_bias: bool,
    eos: frozenset[int],
) -> ModelConfig:
    heads = fields.positive_int("num_attention_heads")
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.positive_int("vocab_size"),
        hidden_size=fields.positive_int("hidden_size"),
        layers=fields.positive_int("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.positive_int("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate_size=fields.positive_int("intermediate_size"),
        max_position=fields.positive_int("max_position_embeddings"),
        rms_eps=fields.positive_float("rms_norm_eps", 1e-6),
        rope=rope,
        local_rope=local_rope,
        layer_types=layer_types,
        sliding_window=sliding_window,
        attention_scale=attention_scale,
        tied=tied,
        attention_bias=fields.flag("attention_bias", default=False),
        mlp_bias=mlp_bias,
        eos_token_ids=eos,
        bos_token_id=min(fields.token_ids("bos_token_id"), default=None),
    )
