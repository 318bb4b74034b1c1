"""failures.md, 6, 23, 24: workers that are killed, that hang, and that come back."""

import asyncio
import signal
import time

import grpc
import pytest

from baton.client import Client
from baton.v1 import decode_pb2, decode_pb2_grpc
from services.common import rpc
from tests.faults.load import Work, ended, fresh, played, ready, restarted
from tests.faults.schedules import DECODE, PREFILL, Kind, Phase, Schedule, Step

MOMENTS = {
    Phase.QUEUED: (-1, 0.0),
    Phase.PREFILLING: (-1, 0.01),
    Phase.HANDOFF: (1, 0.0),
    Phase.FETCHING: (1, 0.003),
    Phase.DECODING: (20, 0.0),
    Phase.LAST: (39, 0.0),
}
"""Tokens that the first client has, and seconds after that."""


def schedule(kind, target, phase, number, seconds=0.0):
    """Six requests that keep both workers of a role busy, and one fault."""
    tokens, delay = MOMENTS[phase]
    requests = tuple(fresh(600 + number * 10 + i, 150, 40, router=i) for i in range(6))
    return Schedule(-1, requests, (Step(kind, target, phase, 0, tokens, delay, seconds),))


@pytest.mark.parametrize("phase", MOMENTS)
@pytest.mark.parametrize("target", ["prefill-0", "decode-1"])
async def test_killed_at_each_phase_every_client_gets_the_whole_text(shared_runner, target, phase):
    number = list(MOMENTS).index(phase) + 10 * (target == "decode-1")
    outcomes = await shared_runner.run(schedule(Kind.KILL, target, phase, number))
    assert all(outcome.what == "whole" for outcome in outcomes)
    assert max(outcome.seconds for outcome in outcomes) < 8.0


@pytest.mark.parametrize("phase", [Phase.PREFILLING, Phase.HANDOFF, Phase.DECODING])
async def test_the_transfer_service_killed_at_each_phase(shared_runner, phase):
    number = 20 + list(MOMENTS).index(phase)
    outcomes = await shared_runner.run(schedule(Kind.KILL, "transfer", phase, number))
    assert all(outcome.what == "whole" for outcome in outcomes)


@pytest.mark.parametrize("phase", [Phase.PREFILLING, Phase.DECODING])
@pytest.mark.parametrize("target", ["prefill-1", "decode-0"])
async def test_a_hung_worker_is_given_up_within_seconds(shared_runner, target, phase):
    """Its connections stay open and nothing answers: what it had goes on elsewhere meanwhile."""
    number = 30 + list(MOMENTS).index(phase) + 10 * (target == "decode-0")
    hung = 9.0
    outcomes = await shared_runner.run(schedule(Kind.STOP, target, phase, number, hung))
    assert all(outcome.what == "whole" for outcome in outcomes)
    assert max(outcome.seconds for outcome in outcomes) < hung - 1.0, "they waited for its return"


@pytest.mark.parametrize("target", ["prefill-0", "decode-0", "transfer"])
async def test_hung_at_the_start_of_a_request(shared_runner, target):
    outcomes = await shared_runner.run(schedule(Kind.STOP, target, Phase.QUEUED, 50, 3.0))
    assert all(outcome.what == "whole" for outcome in outcomes)


def known(cluster):
    return {worker.record.worker_id for worker in cluster.fleet().workers}


async def until_known(cluster, name, expected, seconds):
    async with asyncio.timeout(seconds):
        while (name in await asyncio.to_thread(known, cluster)) is not expected:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", ["prefill-1", "decode-1"])
async def test_one_that_vanished_is_out_of_rotation_in_seconds_and_comes_back(pairs, name, oracle):
    """Three times in a row: no failure blacklists it for ever."""
    work = Work.of([fresh(240 + i, 30, 6, router=i) for i in range(8)], oracle)
    for _ in range(3):
        with pairs.stopped(name):
            await until_known(pairs, name, False, 8.0)
            began = time.monotonic()
            await played(pairs, work)
            assert time.monotonic() - began < 4.0, "requests waited for a worker that is gone"
        await until_known(pairs, name, True, 5.0)
    before = pairs.worker_status(name).finished_requests
    async with asyncio.timeout(15.0):
        while pairs.worker_status(name).finished_requests == before:
            await played(pairs, work)


async def test_restarted_on_the_same_address_it_is_a_new_worker(pairs):
    record = next(w.record for w in pairs.fleet().workers if w.record.worker_id == DECODE[1])
    await restarted(pairs, DECODE[1], signal.SIGKILL)
    again = next(w.record for w in pairs.fleet().workers if w.record.worker_id == DECODE[1])
    assert again.address == record.address
    assert again.incarnation != record.incarnation
    request = decode_pb2.DecodeRequest(request_id="old", incarnation=record.incarnation)
    request.prompt.prompt_token_ids.extend([5, 6, 7])
    request.prompt.sampling.max_tokens = 4
    async with rpc.channel(record.address) as channel:
        began = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in decode_pb2_grpc.DecodeServiceStub(channel).Decode(request, timeout=5):
                pass
    assert refused.value.code() is grpc.StatusCode.ABORTED
    assert time.monotonic() - began < 4.0


async def test_a_restart_of_either_role_loses_no_place_in_the_fleet(pairs, oracle):
    """All four at once: served again as soon as they are back."""
    work = Work.of([fresh(260 + i, 30, 6, router=i) for i in range(4)], oracle)
    await asyncio.gather(*(ended(pairs, name, signal.SIGKILL) for name in (*PREFILL, *DECODE)))
    for name in (*PREFILL, *DECODE):
        pairs.start(name)
    await ready(pairs)
    await played(pairs, work)


async def test_a_network_that_delays_or_cuts_what_goes_to_a_worker(pairs, oracle):
    work = Work.of([fresh(280 + i, 90, 60, router=i) for i in range(6)], oracle)
    for name in ("prefill-0", "decode-0"):
        with pairs.proxies[name].delayed(0.05):
            await played(pairs, work)
        running = asyncio.create_task(played(pairs, work))
        await asyncio.sleep(0.05)
        pairs.proxies[name].cut()
        await running
        with pairs.proxies[name].refusing():
            await played(pairs, work)
        with pairs.proxies[name].garbling():
            await played(pairs, work)
        await ready(pairs)


def test_the_clients_own_deadline_ends_a_wait_for_workers_that_hang(pairs):
    from baton.errors import BatonError

    with pairs.stopped("decode"), Client(pairs.address) as client:
        began = time.monotonic()
        with pytest.raises(BatonError):
            client.complete([5, 6, 7], max_tokens=8, ignore_eos=True, timeout=1.0)
        assert time.monotonic() - began < 5.0
