"""Puts a router together from its settings, and closes it in the opposite order."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from baton import naming
from baton.tls import is_loopback
from baton.v1 import inference_pb2_grpc
from services.common import rpc
from services.common.fleet.store import RouterId
from services.common.security import Security
from services.common.telemetry import tracing
from services.common.telemetry.metric import Source
from services.common.telemetry.metrics import Metrics, measured
from services.common.text import TextModel, TextModelError
from services.router.constraint_checker import ConstraintChecker
from services.router.demand import DemandCounter
from services.router.door import Door
from services.router.fleet_side import FleetSide, fleet_side
from services.router.generation import Generator
from services.router.intake import Intake
from services.router.keys import Keys
from services.router.legs import Legs
from services.router.metrics import RouterMetrics
from services.router.recent import RecentReports
from services.router.recording import Recorder
from services.router.register import Register
from services.router.report import Reporter
from services.router.request_metrics import RequestMetrics
from services.router.retry import Retries, RetryLimits
from services.router.service import SERVICE_NAME, InferenceService
from services.router.settings import RouterSettings
from services.router.status import FleetStatus
from services.router.tenants import Tenants
from services.router.traces import Traces

log = logging.getLogger(__name__)

_STOP_S = 1.0
"""For calls that remain after the grace, and for those of the fleet's status."""


@dataclass(frozen=True, slots=True)
class _Reports:
    """Who hears of requests."""

    recent: RecentReports
    traces: Traces
    reporter: Reporter


@dataclass(frozen=True, slots=True)
class Router:
    """A router that accepts calls, and is not told yet to be healthy."""

    router_id: RouterId
    register: Register
    server: rpc.RunningServer


@asynccontextmanager
async def assembled(settings: RouterSettings) -> AsyncIterator[Router]:
    """A router that runs inside the block. Raises OSError, with one line for people, where it
    can't start."""
    security = await asyncio.to_thread(
        Security.of, settings, client_certificates=settings.tls_client_certs
    )
    security.check_bind(settings.address)
    router_id = RouterId(settings.router_id or naming.new_id("router"))
    async with AsyncExitStack() as open_parts:
        metrics = await open_parts.enter_async_context(
            measured("router", settings.process_name or router_id, settings.metrics_address)
        )
        keys = Keys(settings.api_keys)
        await keys.start()
        open_parts.push_async_callback(keys.close)
        text = await _load_text(settings)
        fleet = fleet_side(settings, router_id, security, open_parts)
        reports = await _reports(settings, fleet, metrics, open_parts)
        register = Register(settings.max_running)
        metrics.add(_router_metrics(register, fleet))
        intake, generator = _generation(settings, text, fleet, reports, register, open_parts)
        door = _door(settings, fleet, register, keys, open_parts)
        status = _status(fleet, register, metrics.address)
        recent, traces = reports.recent, reports.traces
        service = InferenceService(generator, intake, status, recent, door, traces)
        if not (keys.required or security.wants_certificates or is_loopback(settings.address)):
            log.warning("whoever reaches %s may do anything: see --api-keys", settings.address)
        server = await rpc.serve(
            settings.address,
            [partial(inference_pb2_grpc.add_InferenceServiceServicer_to_server, service)],
            [SERVICE_NAME],
            security,
            [door],
            metrics.health,
        )
        open_parts.push_async_callback(server.stop, _STOP_S)
        await fleet.start(settings.redis_wait_s)
        yield Router(router_id, register, server)


async def _reports(
    settings: RouterSettings, fleet: FleetSide, metrics: Metrics, open_parts: AsyncExitStack
) -> _Reports:
    recorder = Recorder(settings.record)
    await recorder.start()
    open_parts.push_async_callback(recorder.close)
    demand = DemandCounter(fleet.store)
    demand.start()
    open_parts.push_async_callback(demand.close)
    recent = RecentReports(in_progress=lambda most: reporter.in_progress(most))
    requests = RequestMetrics(settings.targets)
    metrics.add(requests.source())
    traces = Traces(
        tracing.active(),
        fleet.channels,
        fleet.view,
        running=lambda asked: reporter.trace_of(asked),
    )
    sinks = [recorder.record, recent.keep, requests.record, traces.keep, demand.ended]
    reporter = Reporter(sinks, demand.arrived)
    return _Reports(recent, traces, reporter)


def _generation(
    settings: RouterSettings,
    text: TextModel,
    fleet: FleetSide,
    reports: _Reports,
    register: Register,
    open_parts: AsyncExitStack,
) -> tuple[Intake, Generator]:
    constraints = ConstraintChecker()
    open_parts.push_async_callback(constraints.close)
    intake = Intake(
        text,
        fleet.view,
        settings.model_name,
        settings.default_max_tokens,
        settings.targets,
        constraints,
    )
    generator = Generator(
        intake,
        register,
        fleet.dispatcher,
        fleet.view,
        Legs(fleet.channels, settings.prefill_timeout_s, settings.decode_stall_s, fleet.view.lost),
        fleet.leases,
        Retries(_retry_limits(settings)),
        fleet.background,
        fleet.index,
        reports.reporter,
    )
    return intake, generator


def _door(
    settings: RouterSettings,
    fleet: FleetSide,
    register: Register,
    keys: Keys,
    open_parts: AsyncExitStack,
) -> Door:
    tenants = Tenants(settings.limits, fleet.store.tenants, fleet.background, register.counters)
    tenants.start()
    open_parts.push_async_callback(tenants.close)
    return Door(keys, tenants)


def _status(fleet: FleetSide, register: Register, metrics_address: str) -> FleetStatus:
    return FleetStatus(
        fleet.router_id,
        fleet.channels,
        fleet.view,
        fleet.dispatcher,
        register,
        fleet.leases,
        fleet.index.__len__,
        metrics_address,
    )


def _router_metrics(register: Register, fleet: FleetSide) -> Source:
    cached = fleet.index.__len__
    return RouterMetrics(register, fleet.dispatcher, fleet.view, fleet.leases, cached).source()


async def _load_text(settings: RouterSettings) -> TextModel:
    try:
        return await asyncio.to_thread(TextModel.load, Path(settings.model), settings.chat_template)
    except TextModelError as error:
        raise OSError(str(error)) from error


def _retry_limits(settings: RouterSettings) -> RetryLimits:
    return RetryLimits(
        prefill_attempts=settings.prefill_attempts,
        decode_attempts=settings.decode_attempts,
        room_s=settings.room_s,
    )
