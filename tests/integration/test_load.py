"""200 requests of mixed length at concurrency 16: right texts, real batches, flat memory."""

import asyncio
import random

import pytest

from baton.client import AsyncClient
from tests.support.cluster import MEBIBYTE, Cluster

REQUESTS = 200
CONCURRENCY = 16


def workload(seed):
    rng = random.Random(seed)
    for _ in range(REQUESTS):
        length = rng.choice([1, 5, 17, 40, 90, 200, 380])
        prompt = [rng.randrange(3, 250) for _ in range(length)]
        yield prompt, rng.choice([1, 2, 8, 24, 60])


async def run(address, work):
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(client, prompt, max_tokens):
        async with gate:
            tokens = []
            async with client.generate(
                prompt, max_tokens=max_tokens, temperature=0.0, ignore_eos=True
            ) as events:
                async for event in events:
                    tokens += [token.id for token in getattr(event, "tokens", ())]
            return tokens

    async with AsyncClient(address) as client:
        return await asyncio.gather(*(one(client, *item) for item in work))


@pytest.fixture(scope="module")
def small_cluster(model, tmp_path_factory):
    """With so little memory that one run fills it: pools and segments are evicted from."""
    with Cluster(
        model,
        run_dir=tmp_path_factory.mktemp("small"),
        kv_bytes=8 * MEBIBYTE,
        segment_bytes=4 * MEBIBYTE,
    ) as running:
        yield running


@pytest.mark.slow
async def test_two_hundred_requests(small_cluster, reference):
    cluster = small_cluster
    work = list(workload(1))
    before = cluster.worker_status("decode")
    first = await run(cluster.address, work)
    after = cluster.worker_status("decode")
    assert first == reference.generate_all(work)
    steps = [
        late - early
        for late, early in zip(after.steps_by_batch_size, before.steps_by_batch_size, strict=True)
    ]
    sequences = sum(size * count for size, count in enumerate(steps))
    assert sequences / sum(steps) > 2, f"the run did not batch: {steps}"

    cluster.wait_idle(2.0)
    settled = cluster.resident_bytes()
    second = await run(cluster.address, work)
    assert second == first
    cluster.wait_idle(2.0)
    for name, size in cluster.resident_bytes().items():
        assert size < settled[name] * 1.05 + 8 * 2**20, f"{name} grew"
    assert cluster.transfer_status().evicted_blobs > 0
    cluster.assert_clean()
