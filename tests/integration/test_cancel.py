"""failures.md, "Cancel and leaks": a cancel in every window frees everything within a second."""

import asyncio
import signal
import time

import grpc
import pytest

from baton.client import AsyncClient
from baton.errors import BatonError
from tests.integration.legs import open_legs, tokens_of

PROMPT = [7 + i % 200 for i in range(200)]


async def consume(client, limit=None, **options):
    """Takes events; closes the stream after `limit` tokens."""
    tokens = []
    async with client.generate(PROMPT, ignore_eos=True, temperature=0.0, **options) as events:
        async for event in events:
            tokens += [token.id for token in getattr(event, "tokens", ())]
            if limit is not None and len(tokens) >= limit:
                break
    return tokens


async def cancel_after(seconds, client, **options):
    """Cancels a request that was started `seconds` ago."""
    task = asyncio.create_task(consume(client, **options))
    await asyncio.sleep(seconds)
    task.cancel()
    return await asyncio.gather(task, return_exceptions=True)


async def test_cancels_at_every_moment_of_a_request(cluster):
    """Sweeps the moment of the cancel over the life of a request, its very last step included."""
    async with AsyncClient(cluster.address) as client:
        start = time.monotonic()
        whole = await consume(client, max_tokens=24)
        life = time.monotonic() - start
        assert len(whole) == 24
        for step in range(40):
            await cancel_after(life * 1.1 * step / 40, client, max_tokens=24)
        cluster.wait_idle(1.0)
        assert await consume(client, max_tokens=24) == whole


@pytest.mark.parametrize("limit", [1, 2, 3, 23, 24])
async def test_a_client_that_stops_reading_at_a_token_frees_all(cluster, limit):
    async with AsyncClient(cluster.address) as client:
        tokens = await consume(client, limit=limit, max_tokens=24)
        assert len(tokens) == limit
        cluster.wait_idle(1.0)


async def test_cancelled_while_waiting_for_a_turn(cluster):
    """With the prefill worker stopped its room fills up; what waits behind can still leave."""
    async with AsyncClient(cluster.address) as client:
        with cluster.stopped("prefill"):
            tasks = [asyncio.create_task(consume(client, max_tokens=4)) for _ in range(64)]
            await asyncio.sleep(0.5)
            assert cluster.fleet().queue.waiting > 0
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        cluster.wait_idle(2.0)


async def test_cancelled_while_prefilling(cluster):
    async with open_legs(cluster) as legs:
        for delay in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02):
            call = await legs.prefill([3 + i % 250 for i in range(400)])
            await asyncio.sleep(delay)
            call.cancel()
            with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
                await call
                raise asyncio.CancelledError
        # A call that was answered before it was cancelled leaves its lease to its router,
        # which here is nobody: it expires.
        cluster.wait_idle(10.0)


async def test_abandoned_between_prefill_and_decode(cluster):
    async with open_legs(cluster) as legs:
        response = await (await legs.prefill(PROMPT))
        assert cluster.transfer_status().leases == 1
        await legs.release(response.handoff)
        cluster.wait_idle(1.0)


async def test_a_router_that_died_after_the_prefill_leaves_nothing_but_a_lease_that_expires(
    cluster,
):
    before = cluster.transfer_status().expired_leases
    async with open_legs(cluster) as legs:
        await (await legs.prefill(PROMPT))
        cluster.wait_idle(10.0)
    assert cluster.transfer_status().expired_leases == before + 1


async def test_cancelled_while_fetching(cluster):
    """The transfer service is stopped, so that the fetch hangs; the cancel needs no answer."""
    async with open_legs(cluster) as legs:
        fresh = [201 + i % 40 for i in range(200)]
        response = await (await legs.prefill(fresh))
        with cluster.stopped("transfer"):
            call = legs.decode(response.handoff)
            await asyncio.sleep(0.2)
            assert cluster.worker_status("decode").waiting_sequences == 1
            call.cancel()
            with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
                await tokens_of(call)
                raise asyncio.CancelledError
            deadline = time.monotonic() + 1.0
            while cluster.worker_status("decode").waiting_sequences:
                assert time.monotonic() < deadline, "the cancelled fetch holds its sequence"
                await asyncio.sleep(0.02)
        await legs.release(response.handoff)
        cluster.wait_idle(2.0)


async def test_cancelled_while_decoding(cluster):
    async with open_legs(cluster) as legs:
        response = await (await legs.prefill(PROMPT, max_tokens=200, ignore_eos=True))
        call = legs.decode(response.handoff)
        seen = 0
        async for event in call:
            seen += len(event.tokens.tokens)
            if seen >= 3:
                call.cancel()
                break
        assert seen >= 3
        await legs.release(response.handoff)
        cluster.wait_idle(1.0)


async def test_a_burst_of_cancels_leaves_an_idle_server(cluster):
    """50 cancels at once; the next request's TTFT is that of an idle server."""
    async with AsyncClient(cluster.address) as client:

        async def first_token(prompt):
            start = time.monotonic()
            async with client.generate(prompt, max_tokens=1) as events:
                async for _ in events:
                    return time.monotonic() - start
            raise AssertionError("no event")

        idle = sorted([await first_token([9, 10 + i, 11]) for i in range(5)])[2]
        tasks = [asyncio.create_task(consume(client, max_tokens=200)) for _ in range(50)]
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        cluster.wait_idle(1.0)
        after = sorted([await first_token([9, 99 + i, 11]) for i in range(3)])[1]
        assert after < idle * 3 + 0.25


async def test_a_cancelled_long_prefill_stops_at_its_next_chunk(cluster):
    """A prompt of twelve chunks is cancelled once the first is computed."""
    prompts = ([i + 20, *(5 + (k * 7) % 240 for k in range(479))] for i in range(20))
    async with open_legs(cluster) as legs:
        for prompt in prompts:
            before = cluster.worker_status("prefill").prefilled_tokens
            call = await legs.prefill(prompt)
            await asyncio.sleep(0)
            while cluster.worker_status("prefill").prefilled_tokens == before:
                await asyncio.sleep(0.0005)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            cluster.wait_idle(10.0)
            if cluster.worker_status("prefill").prefilled_tokens - before < len(prompt):
                return
    pytest.fail("no cancelled prompt was left uncomputed")


async def test_a_client_that_is_killed_frees_all(cluster):
    """SIGKILL sends no goodbye; the closed connection must be enough."""
    cancelled = cluster.fleet().router.cancelled_requests
    process = cluster.spawn_client(["Once", "--max-tokens", "490", "--ignore-eos"])
    deadline = time.monotonic() + 20.0
    while not cluster.worker_status("decode").running_sequences:
        assert time.monotonic() < deadline, "the client's request did not run"
    process.send_signal(signal.SIGKILL)
    process.wait(5)
    cluster.wait_idle(2.0)
    assert cluster.fleet().router.cancelled_requests == cancelled + 1


async def test_an_error_in_one_stream_does_not_touch_its_neighbours(cluster):
    async with AsyncClient(cluster.address) as client:
        good = [asyncio.create_task(consume(client, max_tokens=40)) for _ in range(4)]
        for _ in range(20):
            with pytest.raises(BatonError):
                await consume(client, max_tokens=1_000_000)
        outputs = await asyncio.gather(*good)
    assert all(output == outputs[0] for output in outputs)
    assert len(outputs[0]) == 40
