"""Engines that admit sequences for what comes next, and not for life."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from engine.engine import Engine
from engine.loader import LoadedModel
from tests.support.engines import fake_engine
from tests.support.fake_model import FakeModel, fake_config


def growing_engine(
    growth_tokens: int | None,
    *,
    windows: Sequence[int | None] = (None, 6),
    max_position: int = 200,
    eos: Iterable[int] = (),
    model: FakeModel | None = None,
    **config: Any,
) -> Engine:
    """As `fake_engine`, with `growth_tokens`, and with another model if one is given."""
    like = fake_engine(windows=windows, max_position=max_position, **config)
    model = FakeModel(windows) if model is None else model
    loaded = LoadedModel(
        config=fake_config(model.vocab_size, max_position, frozenset(eos)),
        digest="fake",
        module=model,  # type: ignore[arg-type]
        weight_format="float32",
    )
    return Engine(loaded, replace(like.config, growth_tokens=growth_tokens))
