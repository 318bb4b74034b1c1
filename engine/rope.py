"""Rotary position embedding: how fast each pair of dimensions turns, and how far it has.

Knows no file format and no sequence: a position's rotation is a function of the position
alone, so that keys may be cached, sent and reused whatever else is computed with them.
"""

import math

import torch
from torch import Tensor

from engine.model_config import RopeConfig


class Rope:
    """Cosines and sines for positions, made each step: a table would outweigh small models."""

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._config, self._head_dim = config, head_dim
        self._frequencies = inverse_frequencies(config, head_dim).to(device)

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin as `kernels.rotary` takes them, [tokens, 1, head_dim]."""
        angles = positions[:, None, None] * self._frequencies_at(positions)
        cos, sin = angles.cos(), angles.sin()
        if self._config.attention_factor != 1.0:
            cos, sin = cos * self._config.attention_factor, sin * self._config.attention_factor
        cos, sin = cos.to(dtype), sin.to(dtype)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def _frequencies_at(self, positions: Tensor) -> Tensor:
        """The frequencies that hold at each position; all the same unless they are dynamic.

        Dynamic ones stretch past the original context, each position by its own length: as
        Transformers does when it decodes token by token. (A whole prompt past it Transformers
        stretches by the prompt's length instead, which no cached key could follow.)
        """
        config = self._config
        if config.kind != "dynamic":
            return self._frequencies
        lengths = (positions + 1).clamp(min=config.original_max_position).float()
        stretch = config.factor * lengths / config.original_max_position - (config.factor - 1)
        bases = config.theta * stretch ** (self._head_dim / (self._head_dim - 2))
        exponents = _exponents(self._head_dim).to(positions.device)
        return 1.0 / bases[:, None, None] ** exponents


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions, float32 [head_dim / 2].

    Of `dynamic`, those within the original context.
    """
    plain: Tensor = 1.0 / config.theta ** _exponents(head_dim)
    if config.kind == "linear":
        return plain / config.factor
    if config.kind == "divided":
        return plain / torch.tensor(config.divisors, dtype=torch.float32)
    if config.kind == "llama3":
        # Wavelengths that fit often into the first training's context keep their speed,
        # those that do not fit are slowed by `factor`, between the two it is blended.
        turns = config.original_max_position * plain / (2 * torch.pi)
        span = config.high_freq_factor - config.low_freq_factor
        keep = ((turns - config.low_freq_factor) / span).clamp(0.0, 1.0)
        return (1 - keep) * plain / config.factor + keep * plain
    if config.kind == "yarn":
        keep = _yarn_keep(config, head_dim)
        return (1 - keep) * plain / config.factor + keep * plain
    return plain


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """What YaRN multiplies cosines and sines with, so that attention stays as sharp."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _exponents(head_dim: int) -> Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim


def _yarn_keep(config: RopeConfig, head_dim: int) -> Tensor:
    """How much of its speed each pair keeps: all above `beta_fast` turns within the original
    context, none below `beta_slow`, by a ramp over the pairs between."""

    def pair_that_turns(times: float) -> float:
        context = config.original_max_position / (times * 2 * math.pi)
        return head_dim * math.log(context) / (2 * math.log(config.theta))

    low, high = pair_that_turns(config.beta_fast), pair_that_turns(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)
    return 1 - ramp.clamp(0.0, 1.0)
