"""Numbers that do not fit together are refused."""

from dataclasses import replace

import pytest

from engine.model_config import FULL, SLIDING
from tests.support.fake_model import fake_config

GOOD = replace(fake_config(97, 512), layers=2, layer_types=(FULL, SLIDING), sliding_window=24)


def test_window_of() -> None:
    assert GOOD.window_of(0) is None
    assert GOOD.window_of(1) == 24


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 4, "kv_heads": 3}, "4 heads cannot share 3 KV heads"),
        ({"layer_types": (FULL,)}, "1 layer_types for 2 layers"),
        ({"layer_types": (FULL, "chunked_attention")}, "chunked_attention"),
        ({"sliding_window": None}, "need a sliding_window"),
    ],
)
def test_contradictions(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GOOD, **change)
