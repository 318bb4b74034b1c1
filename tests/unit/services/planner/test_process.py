"""Planner processes beside a Kubernetes that keeps its objects, and a Redis."""

import asyncio
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.naming import new_id
from services.common.telemetry.health import LIVE
from tests.support.kubernetes import DECODE, LEASE, LEASES, NAMESPACE, PREFILL, kubeconfig

PATIENCE_S = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING


@asynccontextmanager
async def planner(identity, cluster, redis_url, fleet, directory, *flags):
    """A planner process; ended at the end in any case."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.planner", "--scaler=kubernetes"),
        *(f"--kubeconfig={kubeconfig(cluster, directory)}", f"--namespace={NAMESPACE}"),
        *(f"--prefill-deployment={PREFILL}", f"--decode-deployment={DECODE}"),
        *(f"--lease={LEASE}", f"--identity={identity}", f"--redis={redis_url}"),
        *(f"--fleet={fleet}", "--address=127.0.0.1:0", f"--ready-file={directory / identity}"),
        *("--react-s=0.2", "--period-s=1", "--min-decode=2", *flags),
        stdin=DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until(true, what):
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"not in {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.02)


async def ends(process: Process) -> int:
    process.terminate()
    async with asyncio.timeout(PATIENCE_S):
        return await process.wait()


async def answers(directory, identity, service):
    await until((directory / identity).exists, "it serves")
    async with grpc.aio.insecure_channel((directory / identity).read_text()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service=service)
        return (await stub.Check(asked, timeout=10)).status


def holder(cluster):
    key = (LEASES, NAMESPACE, LEASE)
    return cluster.get(key)["spec"]["holderIdentity"] if key in cluster.objects else None


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_one_of_two_acts_and_the_other_one_takes_over(cluster, redis_server, tmp_path):
    cluster.deploy(PREFILL, "prefill", 1)
    cluster.deploy(DECODE, "decode", 1)
    where = (cluster, redis_server.url, new_id("fleet"), tmp_path)
    async with AsyncExitStack() as running:
        enter = running.enter_async_context
        planners = {name: await enter(planner(name, *where)) for name in ("one", "two")}
        await until(cluster.events, "there are as many workers as there must be")
        assert cluster.replicas(DECODE) == 2
        first = holder(cluster)
        (second,) = planners.keys() - {first}
        for service in ("", LIVE):
            assert await answers(tmp_path, second, service) == SERVING
        (event,) = cluster.events()
        assert (event["reason"], event["reportingInstance"]) == ("ScaledUp", first)
        assert event["regarding"]["name"] == DECODE

        assert await ends(planners[first]) == 0
        cluster.set_replicas(DECODE, 1)
        await until(lambda: len(cluster.events()) == 2, "the other one acts")
        assert (cluster.replicas(DECODE), holder(cluster)) == (2, second)
        assert cluster.events()[-1]["reportingInstance"] == second
        assert await ends(planners[second]) == 0
        assert holder(cluster) == ""
