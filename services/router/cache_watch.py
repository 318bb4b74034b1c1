"""Keeps the cache index up with the fleet: one stream of blob events from each holder.

A stream that breaks, or skips a message, is opened anew and begins with the whole list. Knows
channels and the index; not what the index is used for.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import grpc

from baton.policy.fleet import Worker
from baton.v1 import kv_pb2, transfer_pb2_grpc, worker_pb2_grpc
from services.common.blob_log import Change
from services.router.cache_index import CacheIndex, EngineSource, HostSource, Source, sources_of
from services.router.channels import Channels

log = logging.getLogger(__name__)

CHECK_S = 0.5
"""How often the fleet is compared with the streams."""
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0

Workers = Callable[[], tuple[Worker, ...]]
"""The workers in rotation."""


class CacheWatch:
    """The streams of one router. Belongs to one event loop."""

    def __init__(
        self,
        index: CacheIndex,
        workers: Workers,
        channels: Channels,
        check_s: float = CHECK_S,
    ) -> None:
        self._index = index
        self._workers = workers
        self._channels = channels
        self._check_s = check_s
        self._streams: dict[Source, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Watches in the background."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Ends all streams."""
        tasks = [*self._streams.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._streams.clear()

    async def _run(self) -> None:
        while True:
            self.compare()
            await asyncio.sleep(self._check_s)

    def compare(self) -> None:
        """Begins streams from holders that are new, and ends those from holders that left. One
        that a bug ended begins anew."""
        workers = self._workers()
        self._index.set_workers(workers)
        wanted: dict[Source, str] = {}
        for worker in workers:
            engine, host = sources_of(worker)
            wanted[engine] = worker.address
            if worker.transfer_address:
                wanted[host] = worker.transfer_address
        for source in self._streams.keys() - wanted.keys():
            self._streams.pop(source).cancel()
        for source in [one for one, task in self._streams.items() if task.done()]:
            _tell_failure(source, self._streams.pop(source))
        for source, address in wanted.items():
            if source not in self._streams:
                self._streams[source] = asyncio.create_task(self._follow(source, address))

    async def _follow(self, source: Source, address: str) -> None:
        pause_s = _MIN_PAUSE_S
        try:
            while True:
                changes = self._changes(source, address)
                async with aclosing(changes):
                    with contextlib.suppress(grpc.RpcError):
                        async for change in changes:
                            pause_s = _MIN_PAUSE_S
                            self._apply(source, change)
                self._index.drop(source)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        finally:
            self._index.drop(source)

    async def _changes(self, source: Source, address: str) -> AsyncGenerator[Change, None]:
        """Changes as they come; ends where one is missing."""
        request = kv_pb2.WatchBlobsRequest()
        with self._channels.use(address) as channel:
            stub: Any
            match source:
                case EngineSource():
                    stub = worker_pb2_grpc.WorkerServiceStub(channel)
                case HostSource():
                    stub = transfer_pb2_grpc.TransferServiceStub(channel)
            call = stub.WatchBlobs(request)
            expected = 1
            try:
                async for message in call:
                    change = Change.from_message(message)
                    if change.sequence != expected:
                        log.info("events of %s have a gap; beginning anew", source)
                        return
                    expected += 1
                    yield change
            finally:
                call.cancel()

    def _apply(self, source: Source, change: Change) -> None:
        if change.reset:
            self._index.drop(source)
        self._index.add(source, change.added)
        self._index.remove(source, change.removed)


def _tell_failure(source: Source, ended: asyncio.Task[None]) -> None:
    error = None if ended.cancelled() else ended.exception()
    log.error("events of %s were not followed; beginning anew", source, exc_info=error)
