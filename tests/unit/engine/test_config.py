"""A configuration that can't work is refused when it is made."""

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 0},
        {"kv_bytes": 0},
        {"max_sequences": 0},
        {"max_step_tokens": 0},
        {"checkpoint_blocks": -1},
        {"threads": 0},
        {"growth_tokens": 0},
        {"max_sequences": 33, "max_step_tokens": 32},
    ],
)
def test_impossible_numbers_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        EngineConfig(**change)  # type: ignore[arg-type]


def test_the_defaults_work() -> None:
    assert EngineConfig().max_step_tokens >= EngineConfig().max_sequences
