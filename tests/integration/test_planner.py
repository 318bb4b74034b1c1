"""`baton up --planner`: load brings a further worker, and a quiet fleet lets it go again."""

import asyncio
import contextlib
import re
import sys
import time

import pytest

from baton.client import AsyncClient
from baton.local.state import Kind
from tests.support.models import tiny_gemma3
from tests.support.up_process import UpProcess, assert_all_gone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="`baton up` reads /proc"),
]

SOON = 100.0
CONTEXT_TOKENS = 16384
"""Streams that are to be running when their worker stops are long."""
SHORT = 2
"""Short requests at once, which are the load."""
FIRST_STREAMS = 3
"""Long ones at the first worker, before there is another."""
MAX_STREAMS = 10
AFTER = 50
"""Tokens that show that a stream goes on."""
PLANNER = (
    "--react-s=0.5",
    "--period-s=1",
    "--bucket-s=10",
    "--cold-start-s=1",
    "--scale-down-after-s=3",
    "--headroom=10000",  # any load is more than one worker is enough for
)
FLAGS = (
    *("worker:--no-measure-peaks", "worker:--canary-ratio=0", "worker:--warmup-seconds=0.1"),
    *("router:--disaggregation=always", "router:--ttft-slack-s=600"),
    *(f"planner:{flag}" for flag in PLANNER),
)


@pytest.fixture
def baton(tmp_path):
    process = UpProcess(tmp_path, fakes=False)
    process.model = tiny_gemma3(
        tmp_path / "model", tied=False, max_position_embeddings=CONTEXT_TOKENS
    )
    yield process
    process.clean_up()


def decode_workers(state):
    return [one for one in state.processes if one.kind is Kind.DECODE]


async def until(condition, what):
    deadline = time.monotonic() + SOON
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


async def short_requests(client):
    while True:
        await client.complete("Once upon a time", max_tokens=20, ignore_eos=True)


@contextlib.asynccontextmanager
async def under_load(client):
    load = [asyncio.create_task(short_requests(client)) for _ in range(SHORT)]
    try:
        yield
        for one in load:
            assert not one.done(), one.exception()
    finally:
        for one in load:
            one.cancel()
        await asyncio.gather(*load, return_exceptions=True)


async def long_stream(client, tokens):
    """All of one prompt and seed: whatever happens to their workers, they are the same."""
    options = {"max_tokens": CONTEXT_TOKENS - 100, "temperature": 1.0, "seed": 3}
    async with client.generate("The sea", ignore_eos=True, **options) as events:
        async for event in events:
            tokens += [token.id for token in getattr(event, "tokens", ())]
    raise AssertionError(f"the stream was over after {len(tokens)} tokens")


async def test_load_brings_a_worker_and_quiet_takes_it_away_by_drain(baton):
    baton.up(
        *("--planner", "--max-prefill=1", "--max-decode=2", "--dtype=float32", "--no-gateway"),
        *("--kv-memory=64MiB", "--shared-memory=64MiB", "--threads=1", "--grace=10"),
        *(f"--service-flag={flag}" for flag in FLAGS),
    )
    before = await asyncio.to_thread(baton.wait_phase)
    assert [one.name for one in decode_workers(before)] == ["decode-0"]
    outputs: list[list[int]] = []
    streams: list[asyncio.Task[None]] = []
    async with AsyncClient(baton.address) as client, asyncio.TaskGroup() as tasks:

        async def both_stream():
            """Adds streams until each worker has more sequences than the short requests are."""
            workers = (await client.fleet()).workers
            running = {one.record.worker_id: one.status.running_sequences for one in workers}
            most = FIRST_STREAMS if "decode-1" not in running else MAX_STREAMS
            if len(outputs) < most and all(outputs):
                outputs.append([])
                streams.append(tasks.create_task(long_stream(client, outputs[-1])))
            return all(running.get(f"decode-{i}", 0) > SHORT for i in range(2)) and all(outputs)

        async def one_is_left():
            return len(decode_workers(baton.state())) == 1

        async def all_go_on():
            return all(len(tokens) >= least for tokens, least in zip(outputs, enough, strict=True))

        async with under_load(client):
            await until(both_stream, "load brings no worker with streams")
        await until(one_is_left, "quiet takes no worker away")
        enough = [len(tokens) + AFTER for tokens in outputs]
        await until(all_go_on, "streams stand still")
        told = (await client.fleet()).router
        for one in streams:
            one.cancel()
    assert told.migrated_sequences > 0
    assert told.failed_requests == 0
    shortest = min(map(len, outputs))
    assert all(tokens[:shortest] == outputs[0][:shortest] for tokens in outputs)
    state = baton.state()
    decisions = (baton.run_dir / "decisions.log").read_text()
    assert "decode 1 -> 2" in decisions
    assert "decode 2 -> 1 (stopping decode-" in decisions
    place = f"--run-dir={baton.run_dir}"
    status = await asyncio.to_thread(baton.run, "status", f"--address={baton.address}", place)
    assert re.search("wanted: 1 prefill, 1 ready; 1 decode, 1 ready", status.stdout), status
    assert state.supervisor == before.supervisor
    assert (await asyncio.to_thread(baton.run, "down", place)).returncode == 0
    assert_all_gone(state)
