"""Puts an engine worker together, runs it until it is told to stop, and drains it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial

import torch

from baton.errors import BatonError
from baton.naming import Incarnation, WorkerId, new_id
from baton.policy.fleet import Role
from baton.v1 import worker_pb2, worker_pb2_grpc
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineError, LoopStopped
from engine.loader import LoadError
from services.common.fleet.registry import Registry
from services.common.fleet.store import FleetStore
from services.common.process import write_ready_file
from services.common.rpc import Register, RunningServer, serve
from services.common.security import PLAIN, Security
from services.common.telemetry.health import Health
from services.common.telemetry.metrics import measured
from services.common.transfer.client import TransferClient
from services.worker.constraints import Constraints
from services.worker.drain import Drain
from services.worker.host import Host, Identity
from services.worker.loading import LoadStopped, Progress, load_engine, loader
from services.worker.metrics import WorkerMetrics
from services.worker.pokes import Pokes
from services.worker.settings import WorkerSettings
from services.worker.status import WorkerServicer

log = logging.getLogger(__name__)

MakeServicer = Callable[[Host], tuple[Register, str]]
"""Makes a servicer of the role: how to register it, and its full name."""

LAST_WORDS_S = 1.0
"""After the engine failed: time for streams to hear of it before the process ends."""
STOP_GRACE_S = 1.0
POKE_PERIOD_S = 0.01
"""Heartbeats beside the regular ones come no more often."""
FAREWELL_S = 1.0
"""For the heartbeat that says that the worker drains."""


def engine_config(settings: WorkerSettings) -> EngineConfig:
    """The engine's part of the settings."""
    return EngineConfig(
        block_size=settings.block_size,
        kv_bytes=settings.kv_bytes,
        max_sequences=settings.max_sequences,
        max_step_tokens=settings.max_step_tokens,
        checkpoint_blocks=settings.checkpoint_blocks,
        dtype=getattr(torch, settings.dtype),
        growth_tokens=settings.growth_tokens or None,
        threads=settings.threads,
    )


async def run_worker(
    settings: WorkerSettings, role: Role, servicers: Sequence[MakeServicer], stop: asyncio.Event
) -> None:
    """Runs a worker of `role` with its `servicers` until `stop`, then drains it. Raises OSError,
    with one line for people, where it can't start or its engine failed."""
    security = await asyncio.to_thread(Security.of, settings)
    security.check_bind(settings.address)
    constraints = Constraints(settings.model)
    try:
        constraints.start()
        config = engine_config(settings)
        progress = Progress(settings.progress_file)
        engine = await load_engine(loader(settings.model, config), progress, stop)
    except LoadStopped:
        return
    except (EngineError, LoadError) as error:
        raise OSError(str(error)) from error
    failed = asyncio.Event()
    host = make_host(settings, role, engine, failed, security, constraints)
    try:
        await host.transfer.start()
    except BatonError as error:
        raise OSError(error.message) from error
    try:
        if await _started(host, settings.warmup_seconds, settings.measure_peaks, failed):
            await _serve(settings, host, servicers, stop, failed, security)
    finally:
        await host.background.settled(STOP_GRACE_S)
        await host.transfer.close()
        await host.port.stop()
        constraints.close()
    if host.failure is not None:
        raise OSError(f"the engine failed: {host.failure}") from host.failure


async def _started(host: Host, warmup_s: float, peaks: bool, failed: asyncio.Event) -> bool:
    """Starts the engine; False where it failed at once, which the host is told then."""
    try:
        await host.start(warmup_s, peaks=peaks)
    except LoopStopped:
        async with asyncio.timeout(LAST_WORDS_S):
            await failed.wait()
        return False
    return True


def make_host(
    settings: WorkerSettings,
    role: Role,
    engine: Engine,
    failed: asyncio.Event,
    security: Security = PLAIN,
    constraints: Constraints | None = None,
) -> Host:
    """A host for `engine`, with the transfer client of the settings; nothing started."""
    identity = Identity(
        worker_id=WorkerId(settings.worker_id or new_id(role.value)),
        incarnation=Incarnation(new_id("inc")),
        role=role,
        model_name=settings.model_name,
        transfer_address=settings.transfer,
    )
    transfer = TransferClient(
        settings.transfer,
        identity.worker_id,
        identity.incarnation,
        settings.segment_bytes,
        security=security,
    )
    return Host(
        identity,
        engine,
        transfer,
        fetch_s=settings.fetch_seconds,
        publish_s=settings.publish_seconds,
        lookahead_steps=settings.lookahead_steps,
        on_failure=failed.set,
        constraints=constraints or Constraints(settings.model),
        cores=settings.core_set,
        canary_ratio=settings.canary_ratio,
    )


async def serve_host(
    settings: WorkerSettings,
    host: Host,
    servicers: Sequence[MakeServicer],
    security: Security = PLAIN,
    process: Health | None = None,
) -> RunningServer:
    """A server with the role's servicers and the worker's own, not yet told to be healthy."""
    status = WorkerServicer(host, dtype=settings.dtype, threads=settings.threads)
    made = [make(host) for make in servicers]
    server = await serve(
        settings.address,
        [
            *(register for register, _ in made),
            lambda to: worker_pb2_grpc.add_WorkerServiceServicer_to_server(status, to),
        ],
        [
            *(name for _, name in made),
            worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name,
        ],
        security,
        process=process,
    )
    host.address = settings.advertise or server.address
    return server


async def _serve(
    settings: WorkerSettings,
    host: Host,
    servicers: Sequence[MakeServicer],
    stop: asyncio.Event,
    failed: asyncio.Event,
    security: Security,
) -> None:
    async with AsyncExitStack() as stack:
        who = host.identity
        name = settings.process_name or who.worker_id
        metrics = await stack.enter_async_context(
            measured(who.role.value, name, settings.metrics_address)
        )
        for source in WorkerMetrics(host).sources():
            metrics.add(source)
        host.metrics_address = metrics.address
        metrics.health.watch(partial(host.trouble, settings.stall_s))
        server = await serve_host(settings, host, servicers, security, metrics.health)
        stack.push_async_callback(_stop, server, failed)
        store = FleetStore(settings.redis, settings.fleet)
        stack.push_async_callback(store.close)
        drain = Drain(host, settings.drain_seconds, failed)
        stack.push_async_callback(drain.wait_until_read)
        registry = Registry(store, host.describe, settings.heartbeat_seconds)
        stack.push_async_callback(registry.close)
        stack.callback(host.port.blobs.close)
        pokes = Pokes(registry.poke, POKE_PERIOD_S)
        stack.callback(pokes.close)
        host.changed = pokes.poke
        await registry.start()
        await server.set_serving(True)
        write_ready_file(settings, host.address)
        log.info("serving %s at %s", host.identity.model_name, host.address)
        await _first(stop, failed)
        await server.set_serving(False)
        if not failed.is_set():
            host.refuse_new()
            await _say_draining(store, host, settings.heartbeat_seconds)
            await drain.let_go()


async def _stop(server: RunningServer, failed: asyncio.Event) -> None:
    await server.stop(LAST_WORDS_S if failed.is_set() else STOP_GRACE_S)


async def _say_draining(store: FleetStore, host: Host, period_s: float) -> None:
    """Tells the fleet, so that what leaves is not sent back here; routers hear of it from
    refusals where Redis is away."""
    with suppress(BatonError, TimeoutError):
        async with asyncio.timeout(FAREWELL_S):
            await store.heartbeat(host.describe(), period_s)


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
