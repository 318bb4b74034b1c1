"""All workers of one role are gone: the other role serves both, and says so."""

import asyncio
import signal

import pytest

from tests.faults.load import Work, counted, ended, fresh, played, ready, under_load
from tests.faults.schedules import DECODE, PREFILL


async def gone(cluster, names):
    await asyncio.gather(*(ended(cluster, name, signal.SIGKILL) for name in names))


async def until_degraded(cluster, expected, seconds=10.0):
    async with asyncio.timeout(seconds):
        while bool((await asyncio.to_thread(cluster.fleet)).queue.degraded) is not expected:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("names", [PREFILL, DECODE], ids=["prefill", "decode"])
async def test_the_other_role_serves_both_and_all_is_normal_afterwards(pairs, oracle, names):
    await until_degraded(pairs, False)
    before = counted(pairs, "degraded_requests")
    await gone(pairs, names)
    await until_degraded(pairs, True)
    role = names[0].partition("-")[0]
    assert role in pairs.fleet().queue.degraded
    work = Work.of([fresh(f"no {role} {i}", 90, 40, router=i) for i in range(6)], oracle)
    outcomes = await played(pairs, work)
    assert max(outcome.seconds for outcome in outcomes) < 8.0
    assert counted(pairs, "degraded_requests") >= before + 6
    for name in names:
        pairs.start(name)
    await ready(pairs)
    await until_degraded(pairs, False)
    after = counted(pairs, "degraded_requests")
    work = Work.of([fresh(f"both again {role} {i}", 90, 8, router=i) for i in range(4)], oracle)
    await played(pairs, work)
    assert counted(pairs, "degraded_requests") == after


@pytest.mark.parametrize("names", [PREFILL, DECODE], ids=["prefill", "decode"])
async def test_a_role_that_dies_and_returns_under_load_fails_nothing(pairs, oracle, names):
    plans = [fresh(f"{names[0]} under load {i}", 60, 60, router=i) for i in range(8)]
    async with under_load(pairs, Work.of(plans, oracle)) as load:
        await gone(pairs, names)
        await load.until(6)
        for name in names:
            pairs.start(name)
        await ready(pairs)
        await load.until(6)
