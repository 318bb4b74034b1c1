"""Real processes for the fault tests: a few clusters on one tiny model, each shared by many.

After every test its cluster must be whole and clean again: every process runs, and no block,
lease, claim, reservation, turn or waiting request is left.
"""

import pytest

from services.common.text import TextModel
from tests.faults.checks import Oracle
from tests.faults.runner import Runner, fault_cluster, mend
from tests.support.cluster import Cluster
from tests.support.models import served_gemma3
from tests.support.reference import Reference

CLEAN_SECONDS = 15.0
"""A lease of a killed party ends by its time."""


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A random Gemma 3 with a sliding window of a few blocks, in float32."""
    return served_gemma3(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def reference(model):
    """The same model on an engine in the test's process."""
    return Reference(model)


@pytest.fixture(scope="session")
def oracle(model, reference):
    """Knows what every request must yield."""
    return Oracle(reference, TextModel.load(model))


@pytest.fixture(scope="session")
def shared_pairs(model, tmp_path_factory):
    with fault_cluster(model, tmp_path_factory.mktemp("pairs")) as running:
        yield running


@pytest.fixture(scope="session")
def shared_runner(shared_pairs, oracle):
    return Runner(shared_pairs, oracle)


@pytest.fixture
def pairs(shared_pairs):
    """Two routers, two workers of each role, proxies before some; must be left clean."""
    yield shared_pairs
    _settle(shared_pairs)


@pytest.fixture(scope="session")
def shared_single(model, tmp_path_factory):
    with Cluster(
        model,
        run_dir=tmp_path_factory.mktemp("single"),
        proxied=("valkey", "transfer", "decode-0"),
        service_flags=["prefill:--max-step-tokens=40", "router:--lease-ttl-s=2"],
    ) as running:
        yield running


@pytest.fixture
def single(shared_single):
    """One of each, proxies before some; must be left clean."""
    yield shared_single
    _settle(shared_single)


def _settle(cluster):
    mend(cluster)  # a test that failed half-way must not fail the next one
    cluster.assert_clean(CLEAN_SECONDS)
