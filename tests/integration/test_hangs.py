"""failures.md, "Hangs": what goes wrong ends in an answer, soon."""

import asyncio
import time

import grpc
import pytest

from baton.client import AsyncClient
from baton.errors import BatonError, DeadlineExceeded, InvalidRequest
from baton.v1 import sampling_pb2
from tests.integration.legs import open_legs, tokens_of

PROMPT = [11 + i % 180 for i in range(150)]


async def whole(client, prompt=PROMPT, **options):
    events = client.generate(prompt, ignore_eos=True, temperature=0.0, **options)
    async with events as stream:
        return [token.id async for event in stream for token in getattr(event, "tokens", ())]


async def test_what_a_worker_refuses_reaches_the_client_at_once(cluster):
    """A prefill worker that can't take a request says so; nobody waits for its KV."""
    async with open_legs(cluster) as legs:
        start = time.monotonic()
        for bad in ({"max_tokens": 10_000}, {"temperature": -1.0}, {"max_tokens": 0}):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await (await legs.prefill(PROMPT, **bad))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, bad
            assert f"sampling.{next(iter(bad))}" in refused.value.details()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (await legs.prefill([1, 2, 1_000_000]))
        assert "prompt_token_ids[2]" in refused.value.details()
        assert time.monotonic() - start < 4.0


@pytest.mark.parametrize("role", ["prefill", "decode", "transfer"])
async def test_a_clients_deadline_is_honoured_whoever_hangs(cluster, role):
    async with AsyncClient(cluster.address) as client:
        expected = await whole(client, max_tokens=8)
        with cluster.stopped(role):
            start = time.monotonic()
            try:
                tokens = await whole(client, max_tokens=8, timeout=1.5)
                assert role == "transfer", "only a transfer service can be done without"
                assert tokens == expected
            except DeadlineExceeded:
                pass
            assert time.monotonic() - start < 4.0
        cluster.wait_idle(10.0)
        assert await whole(client, max_tokens=8) == expected


async def test_the_deadline_is_honoured_in_the_queue(cluster):
    async with AsyncClient(cluster.address) as client:
        with cluster.stopped("prefill"):
            tasks = [
                asyncio.create_task(whole(client, max_tokens=2, timeout=1.0)) for _ in range(40)
            ]
            start = time.monotonic()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert time.monotonic() - start < 4.0
        assert all(isinstance(result, BatonError) for result in results)
        cluster.wait_idle(10.0)


async def test_the_deadline_is_honoured_while_decoding(cluster):
    async with AsyncClient(cluster.address) as client:
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            while True:
                await whole(client, max_tokens=300, timeout=0.15)
        assert time.monotonic() - start < 30
        cluster.wait_idle(1.0)


async def test_a_deadline_that_has_passed_already(cluster):
    async with AsyncClient(cluster.address) as client:
        with pytest.raises(DeadlineExceeded):
            await whole(client, max_tokens=4, timeout=0.0001)


async def test_a_handoff_whose_kv_is_gone_is_recomputed(cluster, reference):
    """Nothing in the manifest exists: the decode worker computes the prompt itself."""
    prompt = [13 + (i * 3) % 200 for i in range(77)]
    expected = reference.generate(prompt, max_tokens=10, ignore_eos=True)
    async with open_legs(cluster) as legs:
        response = await (await legs.prefill(prompt, max_tokens=10, ignore_eos=True))
        handoff = response.handoff
        await legs.release(handoff)
        for index, blob in enumerate(handoff.manifest.blobs):
            blob.name = index.to_bytes(16, "little")
        tokens = [response.first_tokens[0].token.token_id, *await tokens_of(legs.decode(handoff))]
    assert tokens == expected


async def test_another_layout_is_refused_before_any_byte_moves(cluster):
    async with open_legs(cluster) as legs:
        response = await (await legs.prefill(PROMPT))
        handoff = response.handoff
        fingerprint = handoff.manifest.layout_fingerprint
        handoff.manifest.layout_fingerprint = "foreign"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await tokens_of(legs.decode(handoff))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "foreign" in refused.value.details()
        assert fingerprint in refused.value.details()
        await legs.release(handoff)


async def test_a_grant_to_an_earlier_incarnation_fails_at_once(cluster):
    async with open_legs(cluster) as legs:
        record = legs.records[1]
        record.incarnation = "earlier"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (await legs.prefill(PROMPT))
        assert refused.value.code() is grpc.StatusCode.ABORTED


async def test_a_handoff_without_a_choice_is_refused_by_name(cluster):
    async with open_legs(cluster) as legs:
        response = await (await legs.prefill(PROMPT))
        handoff = response.handoff
        del handoff.choices[:]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await tokens_of(legs.decode(handoff))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "handoff.choices" in refused.value.details()
        handoff.choices.add(emitted=[sampling_pb2.SampledToken(token_id=4_000_000)])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await tokens_of(legs.decode(handoff))
        assert "emitted" in refused.value.details()
        await legs.release(handoff)


async def test_a_bad_request_is_an_error_within_a_second(cluster):
    took = []
    async with AsyncClient(cluster.address) as client:
        for _ in range(3):
            start = time.monotonic()
            with pytest.raises(InvalidRequest):
                await whole(client, prompt=[1, 2, 10_000_000], max_tokens=4)
            took.append(time.monotonic() - start)
    assert min(took) < 1.0
