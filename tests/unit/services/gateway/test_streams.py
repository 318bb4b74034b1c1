"""Streams end with their client, and wait for it."""

import asyncio

import pytest

from services.gateway.gone import ClientGone, unless_gone
from services.gateway.sse import EventStream, event, streamed


async def never():
    await asyncio.Event().wait()


class Chunks:
    """Counts up for ever, and remembers that it was closed."""

    def __init__(self):
        self.made = 0
        self.closed = asyncio.Event()

    async def run(self):
        try:
            while True:
                self.made += 1
                yield event({"n": self.made})
                await asyncio.sleep(0)
        finally:
            self.closed.set()


async def gone():
    return {"type": "http.disconnect"}


async def test_a_client_that_goes_away_ends_the_work():
    cancelled = asyncio.Event()

    async def work():
        try:
            await never()
        finally:
            cancelled.set()

    with pytest.raises(ClientGone):
        await unless_gone(gone, work())
    assert cancelled.is_set()


async def test_a_stream_ends_with_its_client():
    chunks = Chunks()
    leave = asyncio.Event()

    async def receive():
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if chunks.made > 3:
            leave.set()

    response = await streamed(receive, chunks.run(), {})
    with pytest.raises(ClientGone):
        await asyncio.wait_for(response({"type": "http"}, receive, send), 5)
    assert chunks.closed.is_set()


async def test_a_slow_reader_is_waited_for():
    chunks = Chunks()
    reading = asyncio.Semaphore(3)

    async def send(message):
        await reading.acquire()

    response = EventStream(b"", chunks.run(), {})
    task = asyncio.create_task(response({"type": "http"}, never, send))
    for _ in range(50):
        await asyncio.sleep(0)
    assert chunks.made <= 3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert chunks.closed.is_set()
