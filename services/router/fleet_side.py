"""A router's side of its fleet, put together: what it knows of workers and holds on them."""

import asyncio
import contextlib
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from baton.policy.fleet import Role
from services.common import rpc
from services.common.background import Background
from services.common.fleet.store import FleetStore, RouterId
from services.common.security import Security
from services.router.cache_index import CacheIndex
from services.router.cache_watch import CacheWatch
from services.router.channels import Channels
from services.router.dispatch import DispatchConfig, Dispatcher
from services.router.fleet import FleetView
from services.router.leases import GrpcLeaseTransport, LeaseKeeper
from services.router.settings import RouterSettings

_POLL_S = 0.1
_RELEASE_S = 1.0
"""For giving back what a request held; after it claims and leases expire by themselves."""


@dataclass(frozen=True, slots=True)
class FleetSide:
    """What a router has of its fleet."""

    router_id: RouterId
    store: FleetStore
    view: FleetView
    dispatcher: Dispatcher
    background: Background
    channels: Channels
    leases: LeaseKeeper
    index: CacheIndex
    watch: CacheWatch

    async def start(self, redis_wait_s: float) -> None:
        """Begins to follow it; returns once it knows a worker or that there is none, or after
        `redis_wait_s`: a router that begins beside a Redis that lost everything would refuse
        what the workers, who are there, could do."""
        self.leases.start()
        await self.view.start()
        await self.dispatcher.start()
        await self.watch.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(redis_wait_s):
                while not self.view.informed:
                    await asyncio.sleep(_POLL_S)
                    await self.view.refresh()


def fleet_side(
    settings: RouterSettings, router_id: RouterId, security: Security, open_parts: AsyncExitStack
) -> FleetSide:
    """Nothing is started; `open_parts` closes all of it."""
    closing = open_parts.push_async_callback
    store = FleetStore(settings.redis, settings.fleet)
    closing(store.close)
    view = FleetView(store, roles=_roles(settings))
    closing(view.close)
    dispatcher = Dispatcher(store, view, router_id, _dispatch_config(settings))
    closing(dispatcher.close)
    background = Background(_RELEASE_S)
    channels = Channels(background, connect=partial(rpc.channel, security=security))
    closing(channels.close)
    leases = LeaseKeeper(GrpcLeaseTransport(channels), background, settings.lease_ttl_s)
    closing(leases.close)
    closing(background.settled)
    index = CacheIndex()
    watch = CacheWatch(index, lambda: view.workers, channels)
    closing(watch.close)
    return FleetSide(router_id, store, view, dispatcher, background, channels, leases, index, watch)


def _roles(settings: RouterSettings) -> frozenset[Role]:
    """Roles without which the fleet is degraded."""
    alone = settings.disaggregation == "never"
    return frozenset({Role.DECODE} if alone else Role)


def _dispatch_config(settings: RouterSettings) -> DispatchConfig:
    return DispatchConfig(
        disaggregation=settings.disaggregation,
        max_waiting=settings.max_waiting,
        targets=settings.targets,
        ttft_slack_s=settings.ttft_slack_s,
        tenant_weights=settings.weights,
        retry_ratio=settings.retry_ratio,
        lease_s=settings.lease_ttl_s,
    )
