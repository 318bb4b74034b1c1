"""Which orchestrator the settings mean."""

import sys
from contextlib import AsyncExitStack

import pytest

from baton.policy.fleet import Role
from services.planner.assembly import orchestrator
from services.planner.kubernetes_scaler import KubernetesScaler
from services.planner.leadership import Alone
from services.planner.lease import LeaseElection
from services.planner.local_scaler import LocalScaler
from services.planner.observation import Pool
from services.planner.settings import PlannerSettings
from tests.support.kubernetes import DECODE, LEASE, LEASES, NAMESPACE, PREFILL, kubeconfig

KUBERNETES = (
    *("--scaler=kubernetes", f"--namespace={NAMESPACE}", f"--lease={LEASE}"),
    *(f"--prefill-deployment={PREFILL}", f"--decode-deployment={DECODE}"),
)


@pytest.fixture
def settings(monkeypatch):
    def read(*flags):
        monkeypatch.setattr(sys, "argv", ["planner", *map(str, flags)])
        return PlannerSettings()

    return read


async def test_kubernetes(settings, cluster, tmp_path):
    cluster.deploy(PREFILL, "prefill", 1)
    cluster.deploy(DECODE, "decode", 2)
    flags = (*KUBERNETES, f"--kubeconfig={kubeconfig(cluster, tmp_path)}", "--identity=me")
    async with AsyncExitStack() as open_parts:
        scaler, leadership = await orchestrator(settings(*flags), open_parts)
        assert isinstance(scaler, KubernetesScaler)
        assert isinstance(leadership, LeaseElection)
        assert await scaler.pools() == {Role.PREFILL: Pool(1, 1), Role.DECODE: Pool(2, 2)}
        await leadership.start()
        assert cluster.get((LEASES, NAMESPACE, LEASE))["spec"]["holderIdentity"] == "me"
    assert cluster.get((LEASES, NAMESPACE, LEASE))["spec"]["holderIdentity"] == ""


async def test_a_cluster_that_can_not_be_reached_by_what_is_told(settings, tmp_path):
    flags = (*KUBERNETES, f"--kubeconfig={tmp_path / 'none'}")
    async with AsyncExitStack() as open_parts:
        with pytest.raises(OSError, match="cannot reach Kubernetes by"):
            await orchestrator(settings(*flags), open_parts)


async def test_this_host(settings, tmp_path):
    flags = (f"--replicas-file={tmp_path / 'r.json'}", f"--state-file={tmp_path / 's.json'}")
    async with AsyncExitStack() as open_parts:
        scaler, leadership = await orchestrator(settings(*flags), open_parts)
    assert isinstance(scaler, LocalScaler)
    assert isinstance(leadership, Alone)
    assert leadership.left_s > 1e9
