"""A drain takes no longer than its grace, whatever hangs, and waits for readers only after it."""

import asyncio

import pytest

from services.worker.drain import Drain


class Runs:
    def __init__(self, count):
        self.count = count
        self.empty = asyncio.Event()

    async def wait_empty(self):
        await self.empty.wait()
        self.count = 0


class Transfer:
    def __init__(self):
        self.asked = []
        self.read = asyncio.Event()

    async def wait_unleased(self, timeout_s):
        self.asked.append(timeout_s)
        await self.read.wait()
        return True


class Host:
    def __init__(self, count=2):
        self.runs = Runs(count)
        self.transfer = Transfer()
        self.log = []

    def drain(self):
        self.log.append("drain")

    def end_all(self):
        self.log.append("end_all")


@pytest.fixture
def failed():
    return asyncio.Event()


async def test_it_ends_when_nothing_runs_and_all_is_read(failed):
    host = Host()
    drain = Drain(host, 5.0, failed)
    letting_go = asyncio.create_task(drain.let_go())
    await asyncio.sleep(0.02)
    assert not letting_go.done()
    host.runs.empty.set()
    await asyncio.wait_for(letting_go, 1)
    assert host.log == ["drain"]
    reading = asyncio.create_task(drain.wait_until_read())
    await asyncio.sleep(0.02)
    assert not reading.done()
    assert 4.0 < host.transfer.asked[0] < 5.0, "the rest of the grace"
    host.transfer.read.set()
    await asyncio.wait_for(reading, 1)


async def test_what_hangs_is_ended_at_the_deadline_and_nothing_is_waited_for_then(failed):
    host = Host()
    drain = Drain(host, 0.05, failed)
    await asyncio.wait_for(drain.let_go(), 1)
    assert host.log == ["drain", "end_all"]
    await asyncio.wait_for(drain.wait_until_read(), 1)
    assert host.transfer.asked == []


async def test_readers_that_hang_cost_the_grace_only(failed):
    host = Host()
    host.runs.empty.set()
    drain = Drain(host, 0.1, failed)
    await drain.let_go()
    await asyncio.wait_for(drain.wait_until_read(), 1)


async def test_an_engine_that_fails_ends_it(failed):
    host = Host()
    drain = Drain(host, 60.0, failed)
    letting_go = asyncio.create_task(drain.let_go())
    await asyncio.sleep(0.01)
    failed.set()
    await asyncio.wait_for(letting_go, 1)
    await asyncio.wait_for(drain.wait_until_read(), 1)


async def test_a_worker_that_did_not_drain_waits_for_no_one(failed):
    host = Host()
    await asyncio.wait_for(Drain(host, 60.0, failed).wait_until_read(), 1)
    assert host.transfer.asked == []
