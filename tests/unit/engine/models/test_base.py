"""Groups of layers, by window."""

from dataclasses import replace

import pytest

from engine.model_config import FULL, SLIDING
from engine.models.base import kv_groups
from tests.support.fake_model import fake_config


def config_of(layer_types: tuple[str, ...], window: int | None):
    return replace(
        fake_config(97, 512), layers=len(layer_types), layer_types=layer_types,
        sliding_window=window, kv_heads=1, head_dim=8,
    )  # fmt: skip


def test_layers_group_by_window_full_attention_first() -> None:
    groups = kv_groups(config_of((SLIDING, SLIDING, FULL, SLIDING), 24))
    assert [(g.name, g.layers, g.window) for g in groups] == [
        ("full", (2,), None),
        ("window-24", (0, 1, 3), 24),
    ]
    assert {(g.kv_heads, g.head_dim) for g in groups} == {(1, 8)}


@pytest.mark.parametrize(("kind", "name"), [(FULL, "full"), (SLIDING, "window-24")])
def test_one_group_where_all_layers_are_alike(kind: str, name: str) -> None:
    assert [(g.name, g.layers) for g in kv_groups(config_of((kind, kind), 24))] == [(name, (0, 1))]
