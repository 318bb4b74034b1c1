"""`python -m services.router`: one router process. Wires its parts and nothing else."""

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from baton import naming
from baton.policy.fleet import Role
from baton.tls import is_loopback
from baton.v1 import inference_pb2_grpc
from services.common import process, rpc
from services.common.background import Background
from services.common.fleet.store import FleetStore, RouterId
from services.common.security import Security
from services.common.telemetry import tracing
from services.common.telemetry.metrics import measured
from services.common.text import TextModel, TextModelError
from services.router.cache_index import CacheIndex
from services.router.cache_watch import CacheWatch
from services.router.channels import Channels
from services.router.constraint_checker import ConstraintChecker
from services.router.dispatch import DispatchConfig, Dispatcher
from services.router.door import Door
from services.router.fleet import FleetView
from services.router.generation import Generator
from services.router.intake import Intake
from services.router.keys import Keys
from services.router.leases import GrpcLeaseTransport, LeaseKeeper
from services.router.legs import Legs
from services.router.metrics import RouterMetrics
from services.router.recent import RecentReports
from services.router.recording import Recorder
from services.router.register import Register
from services.router.report import Reporter
from services.router.request import ClassTargets
from services.router.request_metrics import RequestMetrics
from services.router.retry import Retries, RetryLimits
from services.router.service import SERVICE_NAME, InferenceService
from services.router.settings import RouterSettings
from services.router.status import FleetStatus
from services.router.tenants import Tenants
from services.router.traces import Traces

log = logging.getLogger("services.router")

_POLL_S = 0.1
_RELEASE_S = 1.0
"""For giving back what a request held; after it claims and leases expire by themselves."""
_STOP_S = 1.0
"""For calls that remain after the grace, and for those of the fleet's status."""


async def serve(settings: RouterSettings, stop: asyncio.Event) -> None:
    """Serves until `stop`, then finishes what runs."""
    security = await asyncio.to_thread(
        Security.of, settings, client_certificates=settings.tls_client_certs
    )
    security.check_bind(settings.address)
    router_id = RouterId(settings.router_id or naming.new_id("router"))
    async with AsyncExitStack() as open_parts:
        closing = open_parts.push_async_callback
        metrics = await open_parts.enter_async_context(
            measured("router", settings.process_name or router_id, settings.metrics_address)
        )
        keys = Keys(settings.api_keys)
        await keys.start()
        closing(keys.close)
        text = await _load_text(settings)
        store = FleetStore(settings.redis, settings.fleet)
        closing(store.close)
        fleet = FleetView(store, roles=_roles(settings))
        closing(fleet.close)
        targets = _class_targets(settings)
        dispatcher = Dispatcher(store, fleet, router_id, _dispatch_config(settings, targets))
        closing(dispatcher.close)
        background = Background(_RELEASE_S)
        channels = Channels(background, connect=partial(rpc.channel, security=security))
        closing(channels.close)
        leases = LeaseKeeper(GrpcLeaseTransport(channels), background, settings.lease_ttl_s)
        closing(leases.close)
        closing(background.settled)
        index = CacheIndex()
        watch = CacheWatch(index, lambda: fleet.workers, channels)
        closing(watch.close)

        recorder = Recorder(settings.record)
        await recorder.start()
        closing(recorder.close)

        register = Register(settings.max_running)
        constraints = ConstraintChecker()
        closing(constraints.close)
        intake = Intake(
            text, fleet, settings.model_name, settings.default_max_tokens, targets, constraints
        )
        legs = Legs(channels, settings.prefill_timeout_s, settings.decode_stall_s, fleet.lost)
        retries = Retries(_retry_limits(settings))
        recent = RecentReports(in_progress=lambda most: reporter.in_progress(most))
        requests = RequestMetrics(targets)
        metrics.add(requests.source())
        metrics.add(RouterMetrics(register, dispatcher, fleet, leases, index.__len__).source())
        traces = Traces(
            tracing.active(), channels, fleet, running=lambda asked: reporter.trace_of(asked)
        )
        reporter = Reporter([recorder.record, recent.keep, requests.record, traces.keep])
        generator = Generator(
            intake, register, dispatcher, fleet, legs, leases, retries, background, index, reporter
        )
        status = FleetStatus(
            router_id, channels, fleet, dispatcher, register, leases, index.__len__, metrics.address
        )
        tenants = Tenants(settings.limits, store.tenants, background, register.counters)
        tenants.start()
        closing(tenants.close)
        door = Door(keys, tenants)
        if not (keys.required or security.wants_certificates or is_loopback(settings.address)):
            log.warning("whoever reaches %s may do anything: see --api-keys", settings.address)
        service = InferenceService(generator, intake, status, recent, door, traces)
        server = await rpc.serve(
            settings.address,
            [partial(inference_pb2_grpc.add_InferenceServiceServicer_to_server, service)],
            [SERVICE_NAME],
            security,
            [door],
        )
        closing(server.stop, _STOP_S)

        leases.start()
        await fleet.start()
        await dispatcher.start()
        await watch.start()
        await _redis_answered(fleet, settings.redis_wait_s)
        await server.set_serving(True)
        process.write_ready_file(settings, settings.advertise or server.address)
        log.info("%s serves at %s", router_id, server.address)
        await stop.wait()

        await server.set_serving(False)
        if not await register.close(settings.grace_s):
            log.warning("%d requests did not end in time", register.running)


async def _load_text(settings: RouterSettings) -> TextModel:
    try:
        return await asyncio.to_thread(TextModel.load, Path(settings.model), settings.chat_template)
    except TextModelError as error:
        raise OSError(str(error)) from error


async def _redis_answered(fleet: FleetView, patience_s: float) -> None:
    """Returns once Redis was seen, or after `patience_s`: workers may register later."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            while fleet.snapshot is None:
                await asyncio.sleep(_POLL_S)
                await fleet.refresh()


def _roles(settings: RouterSettings) -> frozenset[Role]:
    """Roles without which the fleet is degraded."""
    alone = settings.disaggregation == "never"
    return frozenset({Role.DECODE} if alone else Role)


def _class_targets(settings: RouterSettings) -> ClassTargets:
    return ClassTargets(
        interactive_ttft_s=settings.ttft_interactive_s,
        interactive_itl_s=settings.itl_interactive_s,
        batch_ttft_s=settings.ttft_batch_s,
        batch_itl_s=settings.itl_batch_s,
    )


def _dispatch_config(settings: RouterSettings, targets: ClassTargets) -> DispatchConfig:
    return DispatchConfig(
        disaggregation=settings.disaggregation,
        max_waiting=settings.max_waiting,
        targets=targets,
        ttft_slack_s=settings.ttft_slack_s,
        tenant_weights=settings.weights,
        retry_ratio=settings.retry_ratio,
        lease_s=settings.lease_ttl_s,
    )


def _retry_limits(settings: RouterSettings) -> RetryLimits:
    return RetryLimits(
        prefill_attempts=settings.prefill_attempts,
        decode_attempts=settings.decode_attempts,
        room_s=settings.room_s,
    )


def main() -> None:
    """The process's entry point."""
    settings = process.read_settings(RouterSettings)
    process.run("router", settings, partial(serve, settings))


if __name__ == "__main__":
    main()
