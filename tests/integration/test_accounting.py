"""failures.md, "Accounting": what is reported adds up, and is what the client sees."""

import asyncio
import itertools
import time

from baton.client import AsyncClient


def prompt_of(length, salt=0):
    return [3 + (i * 31 + salt * 7919 + i * i) % 250 for i in range(length)]


async def timed(client, prompt, **options):
    """Arrival times of the tokens, and the final event."""
    start, arrivals, final = time.monotonic(), [], None
    async with client.generate(prompt, temperature=0.0, ignore_eos=True, **options) as events:
        async for event in events:
            now = time.monotonic() - start
            if hasattr(event, "finish_reason"):
                final = event
            else:
                arrivals += [now] * len(event.tokens)
    return arrivals, final


async def test_usage_counts_each_token_once(cluster):
    async with AsyncClient(cluster.address) as client:
        for salt, (length, count) in enumerate([(1, 1), (40, 2), (100, 15)]):
            arrivals, final = await timed(client, prompt_of(length, salt), max_tokens=count)
            assert len(arrivals) == count == final.usage.completion_tokens
            assert final.usage.prompt_tokens == length


async def test_cached_tokens_are_what_prefill_did_not_compute(cluster):
    prompt = prompt_of(150, salt=77)
    async with AsyncClient(cluster.address) as client:
        for expect_hit in (False, True):
            before = cluster.worker_status("prefill")
            _, final = await timed(client, prompt, max_tokens=4)
            after = cluster.worker_status("prefill")
            computed = after.prefilled_tokens - before.prefilled_tokens
            assert final.usage.cached_tokens + computed == len(prompt)
            assert (final.usage.cached_tokens > 0) == expect_hit


async def test_ttft_is_what_the_client_sees(cluster):
    async with AsyncClient(cluster.address) as client:
        await timed(client, prompt_of(10), max_tokens=2)
        apart, late = [], []
        for salt in range(5):
            arrivals, final = await timed(client, prompt_of(300, salt), max_tokens=8)
            timings = final.timings
            apart.append(abs(timings.queue + timings.prefill - timings.time_to_first_token))
            late.append(arrivals[0] - timings.time_to_first_token)
            assert timings.time_to_first_token <= arrivals[0]
            assert 0 < timings.handoff_gap < timings.total
            assert timings.time_to_first_token + timings.handoff_gap <= timings.total + 1e-6
            gaps = [after - before for before, after in itertools.pairwise(arrivals)]
            assert all(gap >= 0 for gap in gaps)
    # At best: a busy machine adds to some.
    assert min(apart) < 0.002
    assert min(late) < 0.05


async def test_gauges_return_to_zero(cluster):
    async with AsyncClient(cluster.address) as client:
        tasks = [
            asyncio.create_task(timed(client, prompt_of(60, salt), max_tokens=300))
            for salt in range(12)
        ]
        await asyncio.sleep(0.1)
        busy = cluster.fleet()
        assert busy.router.running_requests > 0
        await asyncio.gather(*tasks)
    cluster.wait_idle(1.0)
    idle = cluster.fleet()
    assert idle.router.running_requests == 0
    assert idle.router.leases == 0
    assert idle.queue.waiting == idle.queue.turns == idle.queue.claims == 0
    for worker in idle.workers:
        assert worker.status.running_sequences == worker.status.waiting_sequences == 0
        assert worker.record.running.sequences == worker.record.running.kv_tokens == 0
        assert all(group.used_blocks == 0 for group in worker.status.kv_groups)
    for transfer in idle.transfers:
        assert transfer.status.leases == transfer.status.reservations == 0
