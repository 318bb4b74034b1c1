"""failures.md, 19 and 26: drains and rolling restarts under load fail no request."""

import asyncio
import signal

import pytest

from tests.faults.load import (
    Work,
    counted,
    ended,
    fresh,
    mixed,
    played,
    ready,
    restarted,
    under_load,
    until_decoding,
)  # fmt: skip
from tests.faults.schedules import DECODE, PREFILL, ROUTERS


@pytest.fixture(scope="module")
def work(oracle):
    return Work.of(mixed(26), oracle)


async def test_every_component_in_turn(pairs, work):
    names = (*PREFILL, *DECODE, *ROUTERS, "transfer", "valkey")
    async with under_load(pairs, work, clients=4) as load:  # the cores are for those that start
        for name in names:
            await restarted(pairs, name, signal.SIGTERM)
            assert not load.problems, f"{name}: {load.problems}"
            await load.until(3)


async def test_what_ends_after_a_drain_ends_well(pairs):
    """A drained process ends by itself, with exit code 0."""
    for name in (PREFILL[0], DECODE[0], ROUTERS[1], "transfer"):
        await ended(pairs, name, signal.SIGTERM)
        assert pairs.supervisor.child(name).exit_code() == 0, name
        pairs.start(name)
    await ready(pairs)


async def test_a_draining_decode_worker_hands_its_streams_over_with_their_kv(pairs, oracle):
    """Long streams run; a worker drains: its streams move, and nothing is computed again."""
    plans = [fresh(1900 + number, 40, 400, router=number) for number in range(6)]
    work = Work.of(plans, oracle)
    before = counted(pairs, "migrated_sequences"), counted(pairs, "recomputed_sequences")
    running = asyncio.create_task(played(pairs, work))
    victim = (await until_decoding(pairs, DECODE, any_of_them=True))[0]
    began = asyncio.get_running_loop().time()
    await ended(pairs, victim, signal.SIGTERM)
    took = asyncio.get_running_loop().time() - began
    outcomes = await running
    pairs.start(victim)
    await ready(pairs)
    assert took < 5.0
    assert all(len(outcome.tokens[0]) == 400 for outcome in outcomes)
    assert counted(pairs, "migrated_sequences") > before[0]
    assert counted(pairs, "recomputed_sequences") == before[1]


async def test_a_draining_prefill_worker_fails_nothing(pairs, oracle):
    plans = [fresh(1950 + number, 400, 4, router=number) for number in range(12)]
    running = asyncio.create_task(played(pairs, Work.of(plans, oracle)))
    await asyncio.sleep(0.05)
    await restarted(pairs, PREFILL[1], signal.SIGTERM)
    await running


async def test_a_draining_router_finishes_its_streams(pairs, oracle):
    plans = [fresh(1980 + number, 20, 200, router=1) for number in range(3)]
    running = asyncio.create_task(played(pairs, Work.of(plans, oracle)))
    await until_decoding(pairs, DECODE, any_of_them=True)
    await ended(pairs, ROUTERS[1], signal.SIGTERM)
    outcomes = await running
    pairs.start(ROUTERS[1])
    await ready(pairs)
    assert [outcome.resumes for outcome in outcomes] == [0, 0, 0]
