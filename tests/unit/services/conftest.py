"""A Redis for what is kept in it, and a tiny model, a transfer service process and one worker of
each role for what serves an engine."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from baton.naming import new_id
from baton.policy.fleet import Role
from services.common.fleet.store import FleetStore
from tests.support.models import served_gemma3
from tests.support.redis import RedisServer
from tests.support.workers import (
    LocalWorker,
    TransferProcess,
    decode_request,
    local_worker,
    lone_engine,
    prefill_request,
    whole,
)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One for all tests: each has a fleet of its own there."""
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server that the test may stop or freeze."""
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[FleetStore]:
    """A new fleet; what the test leaves there must add up."""
    store = FleetStore(redis_server.url, new_id("fleet"), timeout_s=10.0)
    yield store
    await store.check_integrity()
    await store.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random Gemma 3 with a sliding window of a few blocks. Untied, lest it repeat its input."""
    return served_gemma3(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def own_engine(tiny_model):
    """The same model, alone in the test's process."""
    return lone_engine(tiny_model)


@pytest.fixture(scope="session")
def transfer_process(tmp_path_factory):
    """A transfer service that all tests share."""
    process = TransferProcess(tmp_path_factory.mktemp("transfer"))
    yield process
    process.stop()


@dataclass
class Pair:
    """One worker of each role, and the transfer service between them."""

    prefill: LocalWorker
    decode: LocalWorker
    transfer: TransferProcess

    async def generate(self, prompt, **values):
        """Prefill, then decode: the first token's response and the decode stream."""
        response = await self.prefill.prefill(prefill_request(prompt, **values))
        assert response.HasField("handoff")
        stream = await whole(self.decode.decode(decode_request(response.handoff)))
        await self.transfer.release(response.handoff.lease_id)
        return response, stream

    async def becomes_clean(self, within_s: float = 3.0) -> None:
        """Nothing held on either side and in the transfer service."""
        await self.prefill.becomes_clean(within_s)
        await self.decode.becomes_clean(within_s)
        deadline = time.monotonic() + within_s
        while True:
            status = await self.transfer.status()
            left = (status.leases, status.leased_blobs, status.reservations)
            if left == (0, 0, 0):
                return
            assert time.monotonic() < deadline, f"leases, leased blobs, reservations: {left}"
            await asyncio.sleep(0.02)


@pytest.fixture
async def pair(tiny_model, transfer_process):
    """Must be left clean."""
    async with (
        local_worker(Role.PREFILL, tiny_model, transfer_process.address) as prefill,
        local_worker(Role.DECODE, tiny_model, transfer_process.address) as decode,
    ):
        pair = Pair(prefill, decode, transfer_process)
        yield pair
        await pair.becomes_clean()


@pytest.fixture
async def own_pair(tiny_model, tmp_path):
    """A pair whose transfer service is the test's alone, to kill or to stop."""
    process = TransferProcess(tmp_path)
    try:
        async with (
            local_worker(Role.PREFILL, tiny_model, process.address) as prefill,
            local_worker(Role.DECODE, tiny_model, process.address) as decode,
        ):
            yield Pair(prefill, decode, process)
            await prefill.becomes_clean()
            await decode.becomes_clean()
    finally:
        process.stop()


@pytest.fixture
def prompt_of(own_engine, request):
    """Makes a prompt of so many tokens, no other test's: the transfer service remembers."""

    def make(length: int, seed: int = 0) -> list[int]:
        rng = random.Random(f"{request.node.nodeid} {length} {seed}")
        return [rng.randrange(3, own_engine.limits.vocab_size) for _ in range(length)]

    return make
