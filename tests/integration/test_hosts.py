"""Two hosts: the prefill worker's KV is on one, the decode worker reads it from the other.

And failures.md, 9: a transfer service that dies, hangs or lies in mid-handoff costs a
recomputation, never the answer.
"""

import asyncio
import contextlib
import time

import grpc
import pytest

from baton.client import AsyncClient
from tests.integration.legs import open_legs, tokens_of
from tests.support.cluster import Cluster

OWNER, READER = 0, 1
"""Hosts of the prefill and of the decode worker."""


@pytest.fixture(scope="module")
def two_hosts(model, tmp_path_factory):
    with Cluster(model, run_dir=tmp_path_factory.mktemp("hosts"), hosts=2) as running:
        yield running


@pytest.fixture
def hosts(two_hosts):
    """The cluster of two hosts; must be left clean."""
    yield two_hosts
    two_hosts.assert_clean(timeout=10.0)  # a killed reader's lease ends by its time


def prompt_of(length, salt):
    return [3 + (i * 41 + salt * 103 + i * i) % 250 for i in range(length)]


def recomputed(cluster):
    return cluster.worker_status("decode").recomputed_handoffs


async def whole(client, prompt, max_tokens):
    events = client.generate(prompt, ignore_eos=True, temperature=0.0, max_tokens=max_tokens)
    async with events as stream:
        return [token.id async for event in stream for token in getattr(event, "tokens", ())]


async def handed_over(legs, prompt, max_tokens=10):
    """A handoff that the prefill worker made, and the first token."""
    response = await (await legs.prefill(prompt, max_tokens=max_tokens, ignore_eos=True))
    return response.handoff, response.first_tokens[0].token.token_id


async def test_a_handoff_between_hosts_moves_the_kv_and_gives_the_same_text(hosts, reference):
    before, computed = hosts.transfer_status(READER), recomputed(hosts)
    async with AsyncClient(hosts.address) as client:
        for salt, length in enumerate((1, 15, 16, 17, 90, 150)):
            prompt = prompt_of(length, salt)
            expected = reference.generate(prompt, max_tokens=12, ignore_eos=True)
            assert await whole(client, prompt, 12) == expected, length
    after, owner = hosts.transfer_status(READER), hosts.transfer_status(OWNER)
    assert recomputed(hosts) == computed
    assert after.peer_blobs - before.peer_blobs >= 150 // 16
    assert after.peer_bytes > before.peer_bytes
    assert (after.peer_failures, owner.peer_blobs) == (before.peer_failures, 0)
    assert [one.worker_id for one in owner.segments] == ["prefill-0"]
    assert {one.worker_id for one in after.segments} == {"decode-0", "peer-reads"}


async def test_many_handoffs_at_a_time(hosts, reference):
    prompts = [prompt_of(60 + number, 20 + number) for number in range(8)]
    async with AsyncClient(hosts.address) as client:
        answers = await asyncio.gather(*(whole(client, prompt, 8) for prompt in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == reference.generate(prompt, max_tokens=8, ignore_eos=True)


def test_the_fleet_shows_both_hosts(hosts):
    fleet = hosts.fleet()
    addresses = [hosts.transfer_address(host) for host in (OWNER, READER)]
    assert sorted(one.address for one in fleet.transfers) == sorted(addresses)
    where = {one.record.worker_id: one.record.transfer_address for one in fleet.workers}
    assert where == {"prefill-0": addresses[OWNER], "decode-0": addresses[READER]}


async def test_a_host_that_hangs_in_mid_handoff_costs_a_recomputation(hosts, reference):
    prompt = prompt_of(100, 40)
    expected = reference.generate(prompt, max_tokens=10, ignore_eos=True)
    computed = recomputed(hosts)
    async with open_legs(hosts) as legs:
        handoff, first = await handed_over(legs, prompt)
        with hosts.stopped("transfer-0"):
            start = time.monotonic()
            tokens = await tokens_of(legs.decode(handoff))
            assert time.monotonic() - start < 4.0
            assert hosts.transfer_status(READER).reservations == 0
        await legs.release(handoff)
    assert [first, *tokens] == expected
    assert recomputed(hosts) == computed + 1


async def test_a_host_killed_in_mid_handoff_costs_a_recomputation(hosts, reference):
    prompt = prompt_of(100, 41)
    expected = reference.generate(prompt, max_tokens=10, ignore_eos=True)
    async with open_legs(hosts) as legs:
        handoff, first = await handed_over(legs, prompt)
        hosts.kill("transfer-0")
        try:
            start = time.monotonic()
            assert [first, *await tokens_of(legs.decode(handoff))] == expected
            assert time.monotonic() - start < 4.0
        finally:
            hosts.start("transfer-0")
    await asyncio.to_thread(hosts.wait_ready, 30.0)
    await until_attached(hosts, OWNER, "prefill-0")


@pytest.mark.parametrize("victim", ["transfer-0", "transfer-1"])
@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1])
async def test_requests_outlive_a_restart_of_either_host(hosts, reference, victim, delay):
    prompts = [prompt_of(120 + number, 50 + number) for number in range(4)]
    async with AsyncClient(hosts.address) as client:
        running = [asyncio.create_task(whole(client, prompt, 24)) for prompt in prompts]
        await asyncio.sleep(delay)
        await asyncio.to_thread(hosts.kill, victim)
        hosts.start(victim)
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*running)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == reference.generate(prompt, max_tokens=24, ignore_eos=True)
    await asyncio.to_thread(hosts.wait_ready, 30.0)
    await until_attached(hosts, OWNER, "prefill-0")
    await until_attached(hosts, READER, "decode-0")


async def test_a_blob_broken_at_its_host_is_recomputed_and_forgotten_there(hosts, reference):
    prompt = prompt_of(100, 70)
    expected = reference.generate(prompt, max_tokens=10, ignore_eos=True)
    before = hosts.transfer_status(OWNER).corrupt_blobs
    async with open_legs(hosts) as legs:
        handoff, first = await handed_over(legs, prompt)
        names = [blob.name for blob in handoff.manifest.blobs]
        assert await hosts.corrupt_blobs(names[:1], OWNER) == 1
        assert [first, *await tokens_of(legs.decode(handoff))] == expected
        await legs.release(handoff)
    assert hosts.transfer_status(OWNER).corrupt_blobs == before + 1


async def test_a_decode_cancelled_while_it_reads_leaves_nothing_on_either_host(hosts, reference):
    prompt = prompt_of(100, 80)
    async with open_legs(hosts) as legs:
        handoff, _ = await handed_over(legs, prompt)
        with hosts.stopped("transfer-0"):
            call = legs.decode(handoff)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(call.read()), 0.3)
            call.cancel()
            async with asyncio.timeout(1.0):
                while (held := hosts.transfer_status(READER)).reservations or held.leases:
                    await asyncio.sleep(0.02)
        assert await call.code() is grpc.StatusCode.CANCELLED
        await legs.release(handoff)
    async with AsyncClient(hosts.address) as client:
        expected = reference.generate(prompt, max_tokens=10, ignore_eos=True)
        assert await whole(client, prompt, 10) == expected


async def until_attached(cluster, host, worker):
    async with asyncio.timeout(10):
        while worker not in {one.worker_id for one in cluster.transfer_status(host).segments}:
            await asyncio.sleep(0.05)
