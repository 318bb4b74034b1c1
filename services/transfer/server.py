"""The transfer service put together: store, attachments, server, and the sweep over time."""

import asyncio
import logging
import time
from dataclasses import dataclass

from baton.v1 import transfer_pb2, transfer_pb2_grpc
from services.common import rpc
from services.common.blob_log import BlobLog
from services.common.security import Security
from services.common.telemetry.metrics import Metrics
from services.transfer import segments
from services.transfer.attachments import Attachments
from services.transfer.liveness import watch_process
from services.transfer.metrics import TransferMetrics
from services.transfer.peers.host import Peers, WrapReader, plain
from services.transfer.room import RoomQueue
from services.transfer.service import TransferServicer
from services.transfer.settings import TransferSettings
from services.transfer.store import BlobStore

log = logging.getLogger(__name__)

_SERVICE_NAME = transfer_pb2.DESCRIPTOR.services_by_name["TransferService"].full_name
_STOP_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class TransferServer:
    """A running transfer service."""

    server: rpc.RunningServer
    names: BlobLog
    attachments: Attachments
    peers: Peers
    sweeper: asyncio.Task[None]
    metrics: Metrics

    @property
    def address(self) -> str:
        """host:port, as bound."""
        return self.server.address

    async def stop(self) -> None:
        """Ends all calls and removes all segments."""
        await self.server.set_serving(False)
        self.attachments.stop()
        self.names.close()
        await self.server.stop(_STOP_GRACE_S)
        self.sweeper.cancel()
        await asyncio.wait([self.sweeper])
        await self.peers.close()
        await self.attachments.close()
        await self.metrics.close()


async def start(settings: TransferSettings, wrap_reader: WrapReader = plain) -> TransferServer:
    """Cleans up after dead services, then serves.

    `wrap_reader` may put something around what reads from other hosts. Raises OSError where it
    can't listen, there is no directory for segments, or NIXL is demanded and can't be had.
    """
    security = await asyncio.to_thread(Security.of, settings)
    security.check_bind(settings.address)
    if not settings.segment_dir.is_dir():
        raise FileNotFoundError(f"{settings.segment_dir}, for the segments, is no directory")
    for path in await asyncio.to_thread(segments.remove_stale, settings.segment_dir):
        log.info("removed %s, left behind by a dead service", path)
    store = BlobStore(time.monotonic)
    names = BlobLog()
    store.on_bound, store.on_unbound = names.add, names.remove
    room = RoomQueue(store)
    attachments = Attachments(store, room, settings.segment_dir, watch_process)
    peers = Peers(store, room, attachments, settings, wrap_reader, security)
    await peers.start()
    name = settings.process_name or settings.advertise or settings.address
    metrics = Metrics("transfer", name)
    metrics.add(TransferMetrics(store, peers.pulls, room).source())
    servicer = TransferServicer(store, names, room, attachments, peers, metrics)
    await metrics.start(settings.metrics_address)
    try:
        server = await rpc.serve(
            settings.address,
            [lambda s: transfer_pb2_grpc.add_TransferServiceServicer_to_server(servicer, s)],
            [_SERVICE_NAME],
            security,
            process=metrics.health,
        )
    except BaseException:
        await metrics.close()
        raise
    await server.set_serving(True)
    sweeper = asyncio.create_task(_sweep(store, attachments, peers, settings.sweep_period_s))
    return TransferServer(server, names, attachments, peers, sweeper, metrics)


async def _sweep(store: BlobStore, attachments: Attachments, peers: Peers, period_s: float) -> None:
    while True:
        await asyncio.sleep(period_s)
        try:
            store.expire()
            attachments.sweep()
            await peers.sweep()
        except Exception:
            log.exception("the sweep failed")
