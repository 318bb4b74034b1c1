"""Puts the page into the gateway: its parts for the time that the gateway runs."""

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI

from baton.client import AsyncClient
from baton.tls import Tls
from baton.v1 import telemetry_pb2
from services.common.telemetry import tracing
from services.common.telemetry.messages import span_message
from services.gateway.page.routes import add_ui, ui_wanted
from services.gateway.page.upstream import ClientUpstream
from services.gateway.page.verdict import Doctor
from services.gateway.page.watch import Watch
from services.gateway.settings import GatewaySettings


@asynccontextmanager
async def page(app: FastAPI, settings: GatewaySettings, tls: Tls | None) -> AsyncIterator[None]:
    """Serves the page, where it is wanted, inside the block; to be entered before `app` serves."""
    if not ui_wanted(settings.ui, settings.address):
        yield
        return
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient(address, tls=tls))
            for address in routers(settings.router)
        ]
        watch = Watch([ClientUpstream(client) for client in clients], Doctor(), _own_spans)
        stack.push_async_callback(watch.close)
        add_ui(app, watch)
        yield


def _own_spans(trace_ids: Collection[bytes]) -> list[telemetry_pb2.Span]:
    traces = tracing.active()
    if traces is None:
        return []
    return [span_message(span, traces.name) for span in traces.ring.spans(trace_ids)]


def routers(target: str) -> list[str]:
    """Each router of a list by itself, since each remembers its own requests. A target that only
    gRPC can resolve is taken as one."""
    places = [place.strip() for place in target.split(",")]
    if all(place.rpartition(":")[2].isdecimal() and "/" not in place for place in places):
        return places
    return [target]
