"""The real system is put into each state that makes it slow; `baton doctor` must name it."""

import asyncio
import contextlib
import itertools
import random

import pytest

from baton import errors
from baton.client import AsyncClient
from baton.doctor.diagnosis import Verdict, diagnose
from baton.doctor.picture import AS_ASKED, Wanted
from baton.doctor.rooflines import Bound
from baton.doctor.snapshot import take
from baton.local.options import MEBIBYTE
from tests.support.cluster import Cluster
from tests.support.models import tiny

PROMPT = 480
BATCH = "stream.batch_size"
TIGHT_S = 0.001
"""No first token and no step comes within it: what is late is asked of, not whether."""
LOOSE = {"ttft_target": 600.0, "itl_target": 600.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Llama large enough for its prompts to take tens of milliseconds."""
    directory = tmp_path_factory.mktemp("model")
    return tiny("llama", directory, hidden_size=256, intermediate_size=1024)


@pytest.fixture(scope="module")
def cluster(model, tmp_path_factory):
    with Cluster(
        model,
        run_dir=tmp_path_factory.mktemp("doctor"),
        kv_bytes=3 * MEBIBYTE,  # a dozen short sequences, a few prompts
        proxied=["transfer"],
        service_flags=["worker:--growth-tokens=64"],
        measured=True,
    ) as running:
        yield running


def prompt_of(number, length=PROMPT):
    return random.Random(number).choices(range(3, 380), k=length)


def codes(diagnosis):
    """What was found, but for what a busy test machine brings by itself."""
    own = {"transfer.given_up", "fleet.cost_unreliable"}
    return [finding.code for finding in diagnosis.findings if finding.code not in own]


async def examined(cluster, load, seconds, named=(), looks=20):
    """The diagnosis of some seconds of a load: coroutines for each client. A state takes a while
    to set in: looks again until what is `named` comes first."""
    async with AsyncClient(cluster.address) as client:
        running = [asyncio.create_task(one) for one in load(client)]
        try:
            for _ in range(looks if named else 1):
                snapshot = await asyncio.to_thread(take, cluster.client, seconds)
                diagnosis = diagnose(snapshot, strict(snapshot) if BATCH in named else AS_ASKED)
                if set(codes(diagnosis)[:1]) & set(named):
                    break
        finally:
            for one in running:
                one.cancel()
            await asyncio.wait(running)
    return diagnosis


def strict(snapshot):
    """A little less between tokens than a decode step takes."""
    [decode] = [one for one in diagnose(snapshot).workers if one.role == "decode"]
    return Wanted(itl_s=0.8 * max((one.step_s for one in decode.phases), default=1.0))


async def again(client, prompts, **options):
    """One request after the other, for as long as it is let."""
    for prompt in prompts:
        with contextlib.suppress(errors.Exhausted):
            await client.complete(prompt, ignore_eos=True, temperature=0.0, **options)


def endless(number, length=PROMPT):
    """Prompts of which none begins like another."""
    return (prompt_of((number, count).__hash__(), length) for count in itertools.count())


async def test_idle(cluster):
    diagnosis = await examined(cluster, lambda _: [asyncio.sleep(0)], 0.2)
    assert diagnosis.verdict is Verdict.IDLE
    assert "--seconds" in diagnosis.summary


async def test_a_warm_cache_is_healthy_and_a_cold_one_is_named(cluster):
    def same(client):
        return [again(client, itertools.repeat(prompt_of(0)), max_tokens=4, **LOOSE)]

    warm = await examined(cluster, same, 0.7)
    assert warm.verdict is Verdict.HEALTHY, codes(warm)
    assert warm.requests > 0
    assert "Healthy" in warm.summary
    phases = [phase for worker in warm.workers for phase in worker.phases]
    assert {phase.phase for phase in phases} >= {"prefill", "decode"}
    for phase in phases:
        assert min(phase.compute, phase.bandwidth) > 0
        assert phase.bound is not Bound.UNKNOWN

    def others(client):
        options = {"max_tokens": 1, "ttft_target": TIGHT_S, "itl_target": 600.0}
        return [again(client, endless(7), tenant="else", **options)]

    cold = await examined(cluster, others, 0.7, ["first_token.cache_misses"])
    assert codes(cold)[0] == "first_token.cache_misses", codes(cold)


async def test_more_prompts_than_the_prefill_worker_computes(cluster):
    def many(client):
        options = {"max_tokens": 2, "ttft_target": TIGHT_S, "itl_target": 600.0}
        return [again(client, endless(number), **options) for number in range(30)]

    saturated = await examined(cluster, many, 1.0, ["first_token.queue"])
    assert codes(saturated)[0] == "first_token.queue", codes(saturated)
    assert "--prefill 2" in saturated.findings[0].advice[0]


async def test_too_many_sequences_in_a_batch(cluster):
    def many(client):
        return [again(client, endless(number, 16), max_tokens=60, **LOOSE) for number in range(24)]

    batch = await examined(cluster, many, 1.0, [BATCH])
    assert codes(batch)[0] == BATCH, codes(batch)
    assert "--max-sequences=" in batch.findings[0].advice[1]


async def test_too_few_blocks(cluster):
    def long(client):
        options = {"max_tokens": 400, **LOOSE}
        return [again(client, endless(number, 100), **options) for number in range(24)]

    preempting = await examined(cluster, long, 1.0, ["stream.preemption"])
    assert codes(preempting)[0] == "stream.preemption", codes(preempting)
    assert "--kv-memory" in preempting.findings[0].advice[0]


async def test_slow_transfer(cluster):
    def some(client):
        options = {"max_tokens": 3, "ttft_target": TIGHT_S, "itl_target": TIGHT_S}
        return [again(client, endless(number, 60), **options) for number in range(2)]

    named = {"first_token.transfer", "first_token.publishing", "stream.transfer"}
    with cluster.proxies["transfer"].delayed(0.05):
        slow = await examined(cluster, some, 1.0, named)
    assert codes(slow)[0] in named, codes(slow)
    assert "stream.transfer" in codes(slow)
