"""Disaggregated equals aggregated in float32, greedy and seeded, token for token."""

import pytest

from baton.client import AsyncClient
from tests.support.cluster import Cluster


@pytest.fixture(scope="module")
def aggregated(model, tmp_path_factory):
    with Cluster(model, aggregated=True, run_dir=tmp_path_factory.mktemp("aggregated")) as running:
        yield running


async def collect(address, prompt, **options):
    async with (
        AsyncClient(address) as client,
        client.generate(prompt, ignore_eos=True, **options) as events,
    ):
        seen = [event async for event in events]
    tokens = [token.id for event in seen[:-1] for token in event.tokens]
    return tokens, "".join(event.text for event in seen[:-1]), seen[-1]


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9}])
async def test_both_ways_give_the_same_tokens(cluster, aggregated, sampling):
    for index, length in enumerate([1, 15, 16, 17, 50, 120, 300]):
        prompt = [3 + (i * 41 + index * 13 + i * i) % 250 for i in range(length)]
        options = sampling | {"seed": 40 + index, "max_tokens": 24, "stop": ["\x07never"]}
        split = await collect(cluster.address, prompt, **options)
        together = await collect(aggregated.address, prompt, **options)
        assert split[0] == together[0]
        assert split[1] == together[1]
        assert len(split[0]) == 24
        assert split[2].timings.prefill_worker != split[2].timings.decode_worker
        assert together[2].timings.prefill_worker in ("", together[2].timings.decode_worker)
    aggregated.assert_clean()


def test_an_aggregated_server_has_decode_workers_only(aggregated):
    fleet = aggregated.fleet()
    assert {worker.record.role for worker in fleet.workers} == {2}
    assert aggregated.worker_status("decode").prefilled_tokens > 0
