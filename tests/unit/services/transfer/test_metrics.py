"""Metrics of the transfer service."""

import asyncio
from types import SimpleNamespace

from baton import errors
from baton.naming import BlobName, Incarnation, LeaseId, WorkerId
from services.common.transfer.place import Checksum, SegmentId
from services.transfer import metrics as told
from services.transfer.metrics import TransferMetrics
from services.transfer.peers.pulls import PeerCounters
from services.transfer.room import RoomQueue
from services.transfer.store import Blob, BlobStore
from tests.support.clock import FakeClock
from tests.support.scrape import read

ONE, TWO = Incarnation("one"), Incarnation("two")


async def test_what_is_held_and_done_is_told():
    store = BlobStore(FakeClock())
    room = RoomQueue(store)
    for incarnation in (ONE, TWO):  # a worker that restarted
        store.add_space(incarnation, WorkerId("w"), SegmentId(incarnation), "/s", 512)
    places = await room.reserve(ONE, [64, 64], 0)
    blob = Blob(BlobName(b"a" * 16), places[0], Checksum(1), 1.0)
    store.commit(ONE, [blob], LeaseId("lease"), 30.0)
    store.acquire([blob.name, BlobName(b"b" * 16)], LeaseId(""), 0.0)
    pulls = SimpleNamespace(counters=PeerCounters(blobs=4, bytes=5, failures=6, waited_s=7.5))
    found = await read(TransferMetrics(store, pulls, room).source())
    assert found.value(told.SEGMENT, worker="w") == 1024
    assert found.value(told.USED, worker="w") == 256
    held = (told.BLOBS, told.LEASED, told.LEASES, told.RESERVATIONS)
    assert [found.value(metric) for metric in held] == [1, 1, 1, 1]
    done = (told.COMMITTED, told.ACQUIRED, told.MISSED, told.EVICTED)
    assert [found.value(metric) for metric in done] == [1, 1, 1, 0]
    peers = (told.PEER_BLOBS, told.PEER_BYTES, told.PEER_FAILURES, told.PEER_SECONDS)
    assert [found.value(metric) for metric in peers] == [4, 5, 6, 7.5]


async def test_waiting_for_room_is_counted_however_it_ends():
    store = BlobStore(FakeClock())
    room = RoomQueue(store)
    store.add_space(ONE, WorkerId("w"), SegmentId("s"), "/s", 256)
    await room.reserve(ONE, [64, 64], 0)
    await room.reserve(ONE, [64], 0.05)
    assert 0.04 < room.waited_s < 2.0
    before = room.waited_s
    waiting = asyncio.create_task(room.reserve(ONE, [64], 30.0))
    await asyncio.sleep(0.02)
    room.fail(ONE)
    assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], errors.BatonError)
    assert room.waited_s > before + 0.01
