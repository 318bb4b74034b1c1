"""The watch against holders that tell over loopback gRPC: worker and transfer service alike."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from baton.policy.fleet import Role
from baton.v1 import kv_pb2, transfer_pb2_grpc, worker_pb2_grpc
from services.common import rpc
from services.common.background import Background
from services.common.blob_log import BlobLog
from services.router.cache_index import CacheIndex
from services.router.cache_watch import CacheWatch
from services.router.channels import Channels
from tests.support.fleet import until, worker
from tests.unit.services.router.test_cache_index import BLOCK, TOKENS, names_of


class Holder(worker_pb2_grpc.WorkerServiceServicer, transfer_pb2_grpc.TransferServiceServicer):
    """Tells of the names in its log; `gap` makes it skip a message once."""

    def __init__(self):
        self.log = BlobLog(batch_s=0.01)
        self.gap = False
        self.streams = 0

    async def WatchBlobs(self, request, context):
        self.streams += 1
        async with contextlib.aclosing(self.log.watch()) as changes:
            async for change in changes:
                if self.gap and change.sequence > 1:
                    self.gap = False
                    continue
                yield change.to_message()


class Index(CacheIndex):
    """Has a bug while it is `broken`."""

    broken = False

    def add(self, source, names):
        if self.broken:
            raise ZeroDivisionError
        super().add(source, names)


@contextlib.asynccontextmanager
async def serving(holder, address="127.0.0.1:0"):
    server = await rpc.serve(
        address,
        [
            lambda to: worker_pb2_grpc.add_WorkerServiceServicer_to_server(holder, to),
            lambda to: transfer_pb2_grpc.add_TransferServiceServicer_to_server(holder, to),
        ],
        [],
    )
    try:
        yield server.address
    finally:
        await server.stop(0)


@pytest.fixture
async def parts():
    """An index, the workers to watch (a list to change), and the watch."""
    background = Background(1.0)
    channels = Channels(background)
    index, workers = Index(), []
    watch = CacheWatch(index, lambda: tuple(workers), channels, check_s=0.02)
    await watch.start()
    yield index, workers
    await watch.close()
    assert not index.sources, "a closed watch knows nothing"
    index.check_integrity()
    await channels.close()
    await background.settled()


def a_worker(address, transfer, incarnation="one"):
    told = replace(worker("w", Role.PREFILL), address=address, transfer_address=transfer)
    return replace(told, block_tokens=BLOCK, index_group=1, incarnation=incarnation)


async def test_it_follows_what_a_worker_and_its_host_hold(parts):
    index, workers = parts
    names, engine, host = names_of(TOKENS), Holder(), Holder()
    engine.log.change(names[:2], [])
    async with serving(engine) as at, serving(host) as transfer:
        workers.append(a_worker(at, transfer))
        await until(lambda: index.look_up(TOKENS, b"") == {"w": 2 * BLOCK})
        host.log.change(names[:4], [])
        await until(lambda: index.look_up(TOKENS, b"") == {"w": 4 * BLOCK})
        host.log.change([], names[:1])
        await until(lambda: index.look_up(TOKENS, b"") == {"w": 2 * BLOCK})
        engine.log.change([], names)
        await until(lambda: index.look_up(TOKENS, b"") == {})
        workers.clear()
        host.log.change(names, [])
        await until(lambda: not index.sources)


async def test_a_message_that_is_missing_begins_the_stream_anew(parts):
    index, workers = parts
    names, engine, host = names_of(TOKENS), Holder(), Holder()
    async with serving(engine) as at, serving(host) as transfer:
        workers.append(a_worker(at, transfer))
        await until(lambda: engine.streams == 1)
        engine.gap = True
        engine.log.change(names[:1], [])
        await until(lambda: not engine.gap)
        engine.log.change(names[1:3], [])
        await until(lambda: index.look_up(TOKENS, b"") == {"w": 3 * BLOCK})
        assert engine.streams == 2


async def test_a_holder_that_dies_is_forgotten_and_comes_back(parts):
    index, workers = parts
    names, host = names_of(TOKENS), Holder()
    host.log.change(names, [])
    async with serving(Holder()) as at:
        async with serving(host) as transfer:
            workers.append(a_worker(at, transfer))
            await until(lambda: index.look_up(TOKENS, b"") == {"w": 5 * BLOCK})
        await until(lambda: index.look_up(TOKENS, b"") == {})
        again = Holder()
        again.log.change(names[:1], [])
        async with serving(again, transfer):
            await until(lambda: index.look_up(TOKENS, b"") == {"w": BLOCK})


async def test_holders_that_tell_nothing_are_asked_again_ever_more_seldom(parts):
    _, workers = parts

    class Mute(Holder):
        async def WatchBlobs(self, request, context):
            self.streams += 1
            if False:
                yield kv_pb2.BlobChanges()

    mute = Mute()
    async with serving(mute) as at:
        workers.append(a_worker(at, ""))
        await until(lambda: mute.streams >= 2)
        await asyncio.sleep(0.5)
        assert mute.streams < 8


async def test_a_bug_ends_no_stream_for_good(parts, caplog):
    index, workers = parts
    names, engine = names_of(TOKENS), Holder()
    async with serving(engine) as at, serving(Holder()) as transfer:
        workers.append(a_worker(at, transfer))
        await until(lambda: engine.streams == 1)
        index.broken = True
        engine.log.change(names[:1], [])
        await until(lambda: "ZeroDivisionError" in caplog.text)
        index.broken = False
        await until(lambda: index.look_up(TOKENS, b"") == {"w": BLOCK})
