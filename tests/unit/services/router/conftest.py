"""A fleet for the tests of what waits and claims in Redis."""

import pytest

from baton.naming import new_id


@pytest.fixture
def fleet() -> str:
    """The name of a new fleet."""
    return new_id("fleet")
