"""Each set of values, rendered."""

import pytest

from tests.support.chart import release, value_sets

SETS = value_sets()


@pytest.fixture(params=SETS)
def made(request):
    """The release that one set of values makes."""
    return release(SETS[request.param])
