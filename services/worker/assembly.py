"""Puts an engine worker together, runs it until it is told to stop, and drains it."""

import asyncio
import logging
from collections.abc import Callable

import torch

from baton.errors import BatonError
from baton.naming import Incarnation, WorkerId, new_id
from baton.policy.fleet import Role
from baton.v1 import worker_pb2, worker_pb2_grpc
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineError
from engine.loader import LoadError
from services.common.fleet.registry import Registry
from services.common.fleet.store import FleetStore
from services.common.process import write_ready_file
from services.common.rpc import Register, RunningServer, serve
from services.common.transfer.client import TransferClient
from services.worker.host import Host, Identity
from services.worker.loading import LoadStopped, Progress, load_engine, loader
from services.worker.settings import WorkerSettings
from services.worker.status import WorkerServicer

log = logging.getLogger(__name__)

MakeServicer = Callable[[Host], tuple[Register, str]]
"""Makes the role's own servicer: how to register it, and its full name."""

LAST_WORDS_S = 1.0
"""After the engine failed: time for streams to hear of it before the process ends."""
STOP_GRACE_S = 1.0


def engine_config(settings: WorkerSettings) -> EngineConfig:
    """The engine's part of the settings."""
    return EngineConfig(
        block_size=settings.block_size,
        kv_bytes=settings.kv_bytes,
        max_sequences=settings.max_sequences,
        max_step_tokens=settings.max_step_tokens,
        checkpoint_blocks=settings.checkpoint_blocks,
        dtype=getattr(torch, settings.dtype),
        threads=settings.threads,
    )


async def run_worker(
    settings: WorkerSettings, role: Role, make_servicer: MakeServicer, stop: asyncio.Event
) -> None:
    """Runs a worker of `role` until `stop`, then drains it. Raises OSError, with one line for
    people, where it can't start or its engine failed."""
    try:
        config = engine_config(settings)
        progress = Progress(settings.progress_file)
        engine = await load_engine(loader(settings.model, config), progress, stop)
    except LoadStopped:
        return
    except (EngineError, LoadError) as error:
        raise OSError(str(error)) from error
    failed = asyncio.Event()
    host = make_host(settings, role, engine, failed)
    try:
        await host.transfer.start()
    except BatonError as error:
        raise OSError(error.message) from error
    host.port.start()
    try:
        await _serve(settings, host, make_servicer, stop, failed)
    finally:
        await host.background.settled(STOP_GRACE_S)
        await host.transfer.close()
        await host.port.stop()
    if host.failure is not None:
        raise OSError(f"the engine failed: {host.failure}") from host.failure


def make_host(settings: WorkerSettings, role: Role, engine: Engine, failed: asyncio.Event) -> Host:
    """A host for `engine`, with the transfer client of the settings; nothing started."""
    identity = Identity(
        worker_id=WorkerId(settings.worker_id or new_id(role.value)),
        incarnation=Incarnation(new_id("inc")),
        role=role,
        model_name=settings.model_name,
        transfer_address=settings.transfer,
    )
    transfer = TransferClient(
        settings.transfer, identity.worker_id, identity.incarnation, settings.segment_bytes
    )
    return Host(
        identity,
        engine,
        transfer,
        fetch_s=settings.fetch_seconds,
        on_failure=failed.set,
        cores=settings.core_set,
    )


async def _serve(
    settings: WorkerSettings,
    host: Host,
    make_servicer: MakeServicer,
    stop: asyncio.Event,
    failed: asyncio.Event,
) -> None:
    status = WorkerServicer(host, dtype=settings.dtype, threads=settings.threads)
    register, name = make_servicer(host)
    server = await serve(
        settings.address,
        [register, lambda to: worker_pb2_grpc.add_WorkerServiceServicer_to_server(status, to)],
        [name, worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name],
    )
    host.address = settings.advertise or server.address
    store = FleetStore(settings.redis, settings.fleet)
    registry = Registry(store, host.describe, settings.heartbeat_seconds)
    host.changed = registry.poke
    await registry.start()
    await server.set_serving(True)
    write_ready_file(settings, host.address)
    log.info("serving %s at %s", host.identity.model_name, host.address)
    try:
        await _first(stop, failed)
        await server.set_serving(False)
        if not failed.is_set():
            await _drain(host, settings.drain_seconds, failed)
    finally:
        await _shut_down(server, registry, store, LAST_WORDS_S if failed.is_set() else STOP_GRACE_S)


async def _drain(host: Host, grace_s: float, failed: asyncio.Event) -> None:
    """Lets what runs finish, for at most `grace_s`; the rest is told to go elsewhere."""
    host.refuse_new()
    log.info("draining %d runs", host.runs.count)
    empty = asyncio.create_task(host.runs.wait_empty())
    failure = asyncio.create_task(failed.wait())
    await asyncio.wait({empty, failure}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    empty.cancel()
    failure.cancel()
    if host.runs.count:
        log.warning("%d runs did not finish within %g s", host.runs.count, grace_s)
        host.end_all()


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _shut_down(
    server: RunningServer, registry: Registry, store: FleetStore, grace_s: float
) -> None:
    await registry.close()
    await store.close()
    await server.stop(grace_s)
