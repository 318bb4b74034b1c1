"""A worker's process: how it starts, what it tells the fleet, how it ends."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.errors import InternalError
from baton.policy.fleet import Role
from baton.v1 import decode_pb2, decode_pb2_grpc, prefill_pb2_grpc
from services.common import rpc
from services.common.fleet.store import FleetStore
from services.common.telemetry import health
from services.worker.assembly import run_worker
from services.worker.decoding.service import make_servicer
from tests.support.redis import RedisServer
from tests.support.workers import (
    BLOCK,
    SERVICERS,
    decode_request,
    failure_of,
    local_worker,
    make_settings,
    own_output,
    prefill_request,
    prompt_request,
    whole,
    whole_rest,
)


@pytest.fixture(scope="module")
def redis():
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
async def store(redis):
    store = FleetStore(redis.url, "process-test")
    yield store
    await store.close()


async def _until(condition, within_s=20.0):
    deadline = asyncio.get_running_loop().time() + within_s
    while not (result := await condition()):
        assert asyncio.get_running_loop().time() < deadline, "it never happened"
        await asyncio.sleep(0.02)
    return result


async def _worker(store):
    workers = (await store.snapshot()).workers
    return workers[0] if workers else None


def _start(role: str, tmp_path, redis, transfer_process, model, **flags) -> subprocess.Popen:
    flags = {
        "model": model, "transfer": transfer_process.address, "redis": redis.url,
        "fleet": "process-test", "worker-id": f"{role}-0", "served-name": "tiny",
        "dtype": "float32", "kv-bytes": 4 << 20, "segment-bytes": 8 << 20,
        "ready-file": tmp_path / "ready", "progress-file": tmp_path / "progress",
        "heartbeat-seconds": 0.2, "cores": os.sched_getaffinity(0).pop(), "drain-seconds": 20,
    } | flags  # fmt: skip
    command = [sys.executable, "-m", f"services.{role}"]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    with (tmp_path / "log").open("w") as log:
        return subprocess.Popen(command, stderr=log)


async def _exit_code(process, within_s=20.0):
    return await asyncio.to_thread(process.wait, within_s)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_starts_registers_and_leaves(
    tmp_path, redis, store, transfer_process, tiny_model, role
):
    process = _start(role, tmp_path, redis, transfer_process, tiny_model)
    try:
        worker = await _until(lambda: _worker(store))
        await _until(lambda: asyncio.to_thread((tmp_path / "ready").exists))
        done, total = map(int, (tmp_path / "progress").read_text().split())
        assert done == total > 0
        assert (tmp_path / "ready").read_text() == worker.address
        assert (worker.worker_id, worker.role, worker.model.name) == (
            f"{role}-0", Role(role), "tiny",
        )  # fmt: skip
        assert (worker.pid, worker.draining) == (process.pid, False)
        async with rpc.channel(worker.address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=5
            )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        process.send_signal(signal.SIGTERM)
        assert await _exit_code(process) == 0
        assert (await store.snapshot()).workers == ()
    finally:
        process.kill()
        process.wait()


async def _first_tokens(call, count: int) -> list[int]:
    """The ids of the first `count` tokens of a stream."""
    ids: list[int] = []
    while len(ids) < count:
        event = await call.read()
        ids += [token.token_id for token in event.tokens.tokens]
    return ids


async def test_sigterm_moves_running_streams_and_the_process_stays_until_they_are_read(
    tmp_path, redis, store, transfer_process, tiny_model, own_engine, prompt_of
):
    process = _start(
        "decode", tmp_path, redis, transfer_process, tiny_model,
        **{"max-sequences": 8, "max-step-tokens": 16, "block-size": BLOCK},
    )  # fmt: skip
    prompts = [prompt_of(20 + n, n) for n in range(4)]
    try:
        worker = await _until(lambda: _worker(store))
        async with rpc.channel(worker.address) as channel:
            stub = decode_pb2_grpc.DecodeServiceStub(channel)
            calls = [
                stub.Decode(prompt_request(one, max_tokens=400), timeout=30) for one in prompts
            ]
            before = [await _first_tokens(call, 5) for call in calls]
            process.send_signal(signal.SIGTERM)
            rest = await asyncio.gather(*(whole_rest(call) for call in calls))
            known = await _worker(store)
            assert known is None or known.draining
            refused = await failure_of(stub.Decode(prompt_request([5, 6, 7]), timeout=5))
            assert refused.code is grpc.StatusCode.UNAVAILABLE
            told = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=5
            )
            assert told.status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert {one.handed_off.reason for one in rest} == {decode_pb2.HANDOFF_REASON_DRAINING}
        await _until(lambda: _gone(store))
        assert process.poll() is None, "what it published was not read yet"
        async with local_worker(
            Role.DECODE, tiny_model, transfer_process.address, max_sequences=8
        ) as other:
            handoffs = [one.handed_off.handoff for one in rest]
            streams = await asyncio.gather(
                *(whole(other.decode(decode_request(one, attempt=1))) for one in handoffs)
            )
            assert process.poll() is None, "its blobs were still leased"
            for handoff in handoffs:
                await transfer_process.release(handoff.lease_id)
        for prompt, first, second, third in zip(prompts, before, rest, streams, strict=True):
            assert third.started.missing_tokens == 1
            ids = [*first, *second.ids, *third.ids]
            assert ids == own_output(own_engine, prompt, max_tokens=400)
        assert await _exit_code(process) == 0
    finally:
        process.kill()
        process.wait()


async def _gone(store):
    return await _worker(store) is None


async def test_sigterm_lets_a_prompt_finish(tmp_path, redis, store, transfer_process, tiny_model):
    process = _start("prefill", tmp_path, redis, transfer_process, tiny_model)
    request = prefill_request([5, 6, 7] * 150)
    try:
        worker = await _until(lambda: _worker(store))
        async with rpc.channel(worker.address) as channel:
            reading = asyncio.ensure_future(
                prefill_pb2_grpc.PrefillServiceStub(channel).Prefill(request, timeout=20)
            )
            await _until(lambda: _running(store))
            process.send_signal(signal.SIGTERM)
            response = await reading
        assert len(response.first_tokens) == 1
        await transfer_process.release(request.lease_id)
        assert await _exit_code(process) == 0
    finally:
        process.kill()
        process.wait()


async def _running(store):
    worker = await _worker(store)
    return worker is not None and worker.running.sequences


async def test_what_does_not_finish_in_time_is_told_to_go_elsewhere(
    redis, store, transfer_process, tiny_model
):
    settings = make_settings(
        Role.PREFILL, tiny_model, transfer_process.address, redis=redis.url,
        fleet="process-test", drain_seconds=0.01,
    )  # fmt: skip
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(settings, Role.PREFILL, SERVICERS[Role.PREFILL], stop))
    worker = await _until(lambda: _worker(store))
    async with rpc.channel(worker.address) as channel:
        reading = asyncio.ensure_future(
            prefill_pb2_grpc.PrefillServiceStub(channel).Prefill(
                prefill_request([5, 6, 7] * 160, max_tokens=2), timeout=30
            )
        )
        await _until(lambda: _running(store))
        stop.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reading
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await asyncio.wait_for(running, 10)
    assert (await store.snapshot()).workers == ()


async def test_what_cannot_be_loaded_is_said_in_one_line(tmp_path, redis, transfer_process):
    process = _start("decode", tmp_path, redis, transfer_process, tmp_path / "nothing-here")
    assert await _exit_code(process) == 1
    lines = (tmp_path / "log").read_text().strip().splitlines()
    assert "nothing-here" in lines[-1]
    assert not any("Traceback" in line for line in lines)


async def test_a_failed_engine_ends_its_streams_and_the_process(
    redis, store, transfer_process, tiny_model
):
    hosts = []

    def servicer(host):
        hosts.append(host)
        return make_servicer(host)

    settings = make_settings(
        Role.DECODE, tiny_model, transfer_process.address, redis=redis.url, fleet="process-test"
    )
    running = asyncio.create_task(run_worker(settings, Role.DECODE, [servicer], asyncio.Event()))
    worker = await _until(lambda: _worker(store))
    async with rpc.channel(worker.address) as channel:
        stub = decode_pb2_grpc.DecodeServiceStub(channel)
        call = stub.Decode(prompt_request([5, 6, 7], max_tokens=400), timeout=30)
        events = aiter(call)
        await anext(events)

        def broken():
            raise RuntimeError("out of memory")

        await asyncio.wrap_future(
            hosts[0].port._thread.call(lambda engine: setattr(engine, "step", broken))
        )
        with pytest.raises(grpc.aio.AioRpcError, match="out of memory") as caught:
            async for _ in events:
                pass
        assert caught.value.code() is InternalError.code
    with pytest.raises(OSError, match="out of memory"):
        await asyncio.wait_for(running, 10)
    assert hosts[0].trouble(60.0) == "the engine failed: out of memory"
    assert (await store.snapshot()).workers == ()


async def test_an_engine_that_is_stuck_is_told_of_until_it_goes_on(
    redis, store, transfer_process, tiny_model, monkeypatch
):
    monkeypatch.setattr(health, "BEAT_S", 0.02)
    hosts, stop, leave = [], asyncio.Event(), threading.Event()

    def servicer(host):
        hosts.append(host)
        return make_servicer(host)

    settings = make_settings(
        Role.DECODE, tiny_model, transfer_process.address, redis=redis.url,
        fleet="process-test", stall_s=0.1,
    )  # fmt: skip
    running = asyncio.create_task(run_worker(settings, Role.DECODE, [servicer], stop))
    worker = await _until(lambda: _worker(store))
    async with rpc.channel(worker.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def serves(name):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            return answer.status == health_pb2.HealthCheckResponse.SERVING

        async def is_dead():
            return not await serves(health.LIVE)

        await _until(lambda: serves(""))
        held = hosts[0].port._thread.call(lambda _engine: leave.wait(30))
        await _until(is_dead)
        assert await serves("")
        assert "at one step" in hosts[0].trouble(0.1)
        leave.set()
        await asyncio.wrap_future(held)
        await _until(lambda: serves(health.LIVE))
    stop.set()
    await asyncio.wait_for(running, 10)
