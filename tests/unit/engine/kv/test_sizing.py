"""Pools stay within the memory given, and keep what they promise."""

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv.budget import Budget
from engine.kv.sizing import PoolPlan, peak_blocks, plan_pools
from tests.support.layouts import layout_of


def config_of(kv_bytes: int, sequences: int, step: int, block_size: int = 4) -> EngineConfig:
    return EngineConfig(
        kv_bytes=kv_bytes,
        max_sequences=sequences,
        max_step_tokens=max(step, sequences),
        block_size=block_size,
    )


layouts = st.builds(
    layout_of,
    st.lists(st.sampled_from([None, 1, 5, 16, 500]), min_size=1, max_size=3),
    st.sampled_from([1, 4, 16]),
)


@settings(max_examples=200, deadline=None)
@given(layouts, st.integers(100, 200_000), st.integers(1, 40), st.integers(1, 64), st.randoms())
def test_what_is_promised_fits(layout, kv_bytes, sequences, step, rng) -> None:
    config = config_of(kv_bytes, sequences, step, layout.block_size)
    try:
        plan = plan_pools(layout, config, max_position=1_000)
    except ConfigError:
        assume(False)
        return
    used = sum(n * layout.block_bytes(group) for group, n in enumerate(plan.blocks))
    assert used <= kv_bytes
    assert 1 <= plan.capacity.sequences <= sequences
    assert 1 <= plan.context_tokens <= 1_000
    budget = Budget(layout, plan.blocks, config.max_step_tokens)
    lives = split(plan, rng)
    for life in lives:
        budget.promise(life - 1)
    budget.check_integrity([life - 1 for life in lives])


def split(plan: PoolPlan, rng: random.Random) -> list[int]:
    """All of the capacity, over as many sequences as there are places, each at least 2 tokens."""
    left, lives = plan.capacity.kv_tokens, []
    for _ in range(plan.capacity.sequences):
        life = min(plan.context_tokens, rng.choice([2, 3, 5, left, rng.randint(2, 900)]))
        if 2 <= life <= left:
            lives.append(life)
            left -= life
    return lives


def test_an_empty_pool_holds_one_sequence_of_the_whole_context() -> None:
    layout = layout_of([None, 16])
    config = config_of(6_000, 4, 16)
    plan = plan_pools(layout, config, max_position=100_000)
    assert plan.context_tokens == plan.capacity.kv_tokens < 100_000
    assert Budget(layout, plan.blocks, 16).can_promise(plan.context_tokens - 1)


def test_windows_beyond_the_memory_leave_fewer_places() -> None:
    layout = layout_of([None, 400])
    plan = plan_pools(layout, config_of(60_000, 32, 32), max_position=1_000)
    assert 1 <= plan.capacity.sequences < 32
    windows = plan.capacity.sequences * peak_blocks(layout, 1, 1_000) * layout.block_bytes(1)
    assert windows <= 30_000


@pytest.mark.parametrize("windows", [[None], [None, 400], [400]])
def test_too_little_memory_is_said_and_the_least_is_named(windows: list[int | None]) -> None:
    layout = layout_of(windows)
    with pytest.raises(ConfigError, match=r"kv_bytes \(50\) is too small .* at least (\d+)") as e:
        plan_pools(layout, config_of(50, 4, 16), max_position=1_000)
    least = int(str(e.value).rsplit(" ", 1)[1])
    assert plan_pools(layout, config_of(least, 4, 16), max_position=1_000).capacity.sequences == 1
    with pytest.raises(ConfigError):
        plan_pools(layout, config_of(least - 1, 4, 16), max_position=1_000)


def test_a_huge_memory_makes_no_more_blocks_than_are_of_use() -> None:
    plan = plan_pools(layout_of([None, 16]), config_of(1 << 30, 2, 16), max_position=100)
    assert max(plan.blocks) <= 2 * 2 * 25 + 4
