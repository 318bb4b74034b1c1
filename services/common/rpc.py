"""gRPC channels and servers as all of Baton's processes have them.

Keepalives notice a peer that vanished; a message may be 16 MiB (KV bytes are never in one).
`serve` adds health, reflection and the interceptor that turns errors into statuses.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import message as protobuf
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from baton import errors
from baton.v1 import telemetry_pb2_grpc
from services.common.security import PLAIN, Security
from services.common.telemetry import context as tracecontext
from services.common.telemetry import tracing
from services.common.telemetry.channel import TracedChannel
from services.common.telemetry.health import LIVE, Health
from services.common.telemetry.service import NAME as TELEMETRY
from services.common.telemetry.service import TelemetryServicer
from services.common.wire import ParseFailure, safe_parser

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # what keepalive pings wait for in fact
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
]
_SERVER_OPTIONS = [*_OPTIONS, ("grpc.so_reuseport", 0)]
_CHANNEL_OPTIONS = [
    *_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In fact a connection's whole time to come about, which on a busy machine is long.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
]

Register = Callable[[grpc.aio.Server], None]
"""Adds one servicer to a server."""
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
"""Finds the handler of a method."""


def channel(address: str, security: Security = PLAIN) -> grpc.aio.Channel:
    """A channel to `address` (host:port); the caller closes it."""
    credentials = security.channel_credentials()
    if credentials is None:
        return TracedChannel(grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS))
    options = [*_CHANNEL_OPTIONS, *security.channel_options()]
    return TracedChannel(grpc.aio.secure_channel(address, credentials, options=options))


@dataclass(slots=True)
class RunningServer:
    """A server that accepts calls; `address` has the port that it got."""

    server: grpc.aio.Server
    process: Health
    checks: health.aio.HealthServicer
    address: str

    async def set_serving(self, serving: bool) -> None:
        """Answers health checks accordingly; orchestrators route by it."""
        self.process.set_ready(serving)
        await self.checks.set("", _state(serving))

    async def stop(self, grace: float) -> None:
        """Refuses new calls, waits `grace` seconds for running ones, then cancels them."""
        await self.set_serving(False)
        await self.server.stop(grace)


async def serve(
    address: str,
    services: Sequence[Register],
    service_names: Sequence[str],
    security: Security = PLAIN,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    process: Health | None = None,
) -> RunningServer:
    """Starts a server at `address` (port 0 takes a free one).

    Health answers NOT_SERVING until `set_serving(True)`; of the service LIVE it answers whether
    the `process` lives, whose readiness follows. `interceptors` come behind those of all servers:
    their errors become statuses too. Raises OSError where the address is taken, or must not be
    served in plain text.
    """
    security.check_bind(address)
    process = process or Health()
    server = grpc.aio.server(
        interceptors=[ErrorInterceptor(), *interceptors], options=_SERVER_OPTIONS
    )
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for register in services:
        register(server)
    remembered = []
    if (traces := tracing.active()) is not None:
        servicer = TelemetryServicer(traces.ring, traces.name)
        telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server(servicer, server)
        remembered = [TELEMETRY]
    names = [*service_names, *remembered, health.SERVICE_NAME, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server)
    try:
        port = _listen(server, address, security)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: is the port taken?") from error
    await checks.set("", _state(False))
    await checks.set(LIVE, _state(process.goes_on))
    process.listen(lambda alive: checks.set(LIVE, _state(alive)))
    await server.start()
    host = address.rsplit(":", 1)[0]
    return RunningServer(server, process, checks, f"{host}:{port}")


def _state(serving: bool) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
    states = health_pb2.HealthCheckResponse
    return states.SERVING if serving else states.NOT_SERVING


def _listen(server: grpc.aio.Server, address: str, security: Security) -> int:
    credentials = security.server_credentials()
    if credentials is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, credentials)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns errors into rich statuses, and messages that can't be parsed into InvalidRequest."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The method's handler, guarded."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        method = handler_call_details.method
        parser = safe_parser(handler.request_deserializer)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _guard_stream(handler.unary_stream, method), parser, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            _guard_unary(handler.unary_unary, method), parser, handler.response_serializer
        )


def _guard_unary(behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        with _callers_span(context):
            try:
                _reject_unparsed(request)
                answer = behaviour(request, context)
                return await answer if inspect.isawaitable(answer) else answer
            except Exception as error:  # noqa: BLE001 - every failure becomes a status here
                await _abort(error, context, method)

    return call


def _guard_stream(behaviour: Callable[..., AsyncGenerator[Any, None]], method: str) -> Any:
    # A coroutine that writes, not a generator: gRPC leaves a generator that waits in a yield to
    # the garbage collector when the client cancels; this one closes it at once.
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        with _callers_span(context):
            try:
                _reject_unparsed(request)
                async with aclosing(behaviour(request, context)) as answers:
                    async for answer in answers:
                        await context.write(answer)
            except Exception as error:  # noqa: BLE001 - every failure becomes a status here
                await _abort(error, context, method)

    return call


def _callers_span(
    context: grpc.aio.ServicerContext[Any, Any],
) -> AbstractContextManager[None]:
    """What a call's handler does belongs to the caller's span."""
    return tracecontext.attached(tracecontext.extract(context.invocation_metadata()))


def _reject_unparsed(request: protobuf.Message | ParseFailure) -> None:
    if isinstance(request, ParseFailure):
        raise errors.InvalidRequest(request.field, request.problem, reason="MALFORMED_MESSAGE")


async def _abort(
    error: Exception, context: grpc.aio.ServicerContext[Any, Any], method: str
) -> None:
    if isinstance(error, grpc.aio.AbortError | asyncio.CancelledError):
        raise error
    if isinstance(error, grpc.RpcError):
        error = errors.from_rpc_error(error)
    if not isinstance(error, errors.BatonError):
        log.error("%s failed", method, exc_info=error)
        error = errors.InternalError(f"{type(error).__name__}: {error}")
    status = rpc_status.to_status(errors.to_status(error))
    told = context.trailing_metadata() or ()
    context.set_trailing_metadata((*told, *status.trailing_metadata))
    await context.abort(status.code, status.details)
