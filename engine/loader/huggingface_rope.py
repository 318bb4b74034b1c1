"""Translates the rope settings of a config.json.

Both as Transformers 5 writes them (`rope_parameters`) and as older versions did
(`rope_theta`, `rope_scaling`).
"""

from engine.loader.fields import Fields
from engine.model_config import RopeConfig
from engine.rope import yarn_attention_factor


def read_rope(fields: Fields, default_theta: float) -> RopeConfig:
    """The rope of a model whose layers all have the same."""
    return rope_of(
        fields,
        fields.part("rope_parameters") or fields.part("rope_scaling"),
        fields.positive_float("rope_theta", default_theta),
    )


def rope_of(fields: Fields, part: Fields | None, theta: float) -> RopeConfig:
    """The rope of one kind of layer; `theta` holds where `part` does not say."""
    fields.refuse("partial_rotary_factor", unless=(1, 1.0), why="partial rotation is not supported")
    if part is None:
        return RopeConfig(theta)
    theta = part.positive_float("rope_theta", theta)
    part.refuse("partial_rotary_factor", unless=(1, 1.0), why="partial rotation is not supported")
    kind = part.text("rope_type", part.text("type", "default"))
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, factor=part.positive_float("factor"))
    if kind == "dynamic":
        # The limit that Transformers counts from, whatever the rope settings may say.
        original = fields.positive_int("max_position_embeddings")
        factor = part.positive_float("factor")
        return RopeConfig(theta, kind, factor=factor, original_max_position=original)
    if kind == "llama3":
        return RopeConfig(
            theta,
            kind,
            factor=part.positive_float("factor"),
            low_freq_factor=part.positive_float("low_freq_factor"),
            high_freq_factor=part.positive_float("high_freq_factor"),
            original_max_position=_original_max_position(fields, part),
        )
    if kind == "yarn":
        return _yarn(fields, part, theta)
    raise part.fault(
        "rope_type", f"is {kind!r}; supported are default, linear, dynamic, llama3 and yarn"
    )


def _yarn(fields: Fields, part: Fields, theta: float) -> RopeConfig:
    original = _original_max_position(fields, part)
    implied = fields.positive_int("max_position_embeddings") / original
    factor = part.positive_float("factor", implied)
    attention_factor = yarn_attention_factor(factor)
    if part.get("mscale") and part.get("mscale_all_dim"):
        attention_factor = yarn_attention_factor(
            factor, part.positive_float("mscale")
        ) / yarn_attention_factor(factor, part.positive_float("mscale_all_dim"))
    return RopeConfig(
        theta,
        "yarn",
        factor=factor,
        original_max_position=original,
        attention_factor=part.positive_float("attention_factor", attention_factor),
        beta_fast=part.positive_float("beta_fast", 32.0),
        beta_slow=part.positive_float("beta_slow", 1.0),
        truncate=part.flag("truncate", default=True),
    )


def _original_max_position(fields: Fields, part: Fields) -> int:
    name = "original_max_position_embeddings"
    if fields.get(name) is not None:
        return fields.positive_int(name)
    return part.positive_int(name, fields.positive_int("max_position_embeddings"))
