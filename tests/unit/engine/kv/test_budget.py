"""Promises are made, raised and given back, and never exceed the pools."""

import pytest

from engine.errors import IntegrityError, NoRoom
from engine.kv.budget import Budget
from tests.support.layouts import layout_of


def budget_of(*blocks: int) -> Budget:
    """A full-attention group, and one of a window of 6 tokens, in blocks of 4."""
    return Budget(layout_of([None, 6][: len(blocks)]), blocks, max_step_tokens=4)


def test_a_promise_is_raised_as_far_as_the_pools_go() -> None:
    budget = budget_of(5)
    budget.promise(4)
    budget.promise(8)
    assert budget.can_raise(4, 12)
    assert not budget.can_raise(4, 13)
    with pytest.raises(IntegrityError):
        budget.raise_to(4, 13)
    budget.raise_to(4, 12)
    budget.check_integrity([12, 8])
    assert not budget.can_raise(8, 9)
    with pytest.raises(NoRoom):
        budget.promise(1)
    budget.give_back(12)
    budget.raise_to(8, 20)
    budget.check_integrity([20])


def test_raising_within_a_block_takes_nothing() -> None:
    budget = budget_of(1)
    budget.promise(1)
    assert budget.can_raise(1, 4)
    budget.raise_to(1, 4)
    budget.check_integrity([4])


def test_a_window_takes_no_more_than_its_share_however_far_a_promise_is_raised() -> None:
    budget = budget_of(100, 5)
    budget.promise(3)
    budget.raise_to(3, 400)
    assert not budget.can_promise(1)
    budget.check_integrity([400])


def test_every_group_has_to_have_room() -> None:
    budget = budget_of(100, 3)
    budget.promise(8)
    assert not budget.can_raise(8, 12)
