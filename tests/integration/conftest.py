"""Real processes for the tests: one disaggregated cluster on a tiny model, shared by all.

After every test the whole cluster must be clean: no block, lease, claim, reservation, turn or
waiting request left, every structure's integrity checked in every process.
"""

import pytest

from tests.support.cluster import Cluster
from tests.support.models import served_gemma3
from tests.support.reference import Reference


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A random Gemma 3 with a sliding window of a few blocks, in float32."""
    return served_gemma3(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def reference(model):
    """The same model on an engine in the test's process."""
    return Reference(model)


@pytest.fixture(scope="session")
def shared_cluster(model, tmp_path_factory):
    with Cluster(
        model,
        run_dir=tmp_path_factory.mktemp("cluster"),
        service_flags=["prefill:--max-step-tokens=40"],  # long prompts take many chunks
    ) as running:
        yield running


@pytest.fixture
def cluster(shared_cluster):
    """The shared cluster; must be left clean."""
    yield shared_cluster
    shared_cluster.assert_clean()
