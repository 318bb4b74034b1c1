"""Workers and demands for tests of scheduling, and a router's half of the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.naming import Incarnation, RequestId, WorkerId, new_id
from baton.policy.cost import PRIORS, StepCost
from baton.policy.fleet import IDLE, NOTHING, Claim, Demand, Load, ModelLimits, Role, Usage, Worker
from services.common.fleet.registry import Registry
from services.common.fleet.store import FleetStore, RouterId

if TYPE_CHECKING:
    from services.router.dispatch import DispatchConfig, Dispatcher
    from services.router.fleet import FleetView

ROOM = Usage(4, 1000)


def worker(
    name: str = "w",
    role: Role = Role.DECODE,
    *,
    incarnation: str = "one",
    capacity: Usage = ROOM,
    running: Usage = NOTHING,
    pending: Usage = NOTHING,
    taken: frozenset[Claim] = frozenset(),
    fingerprint: str = "layout",
    context_tokens: int = 1000,
    draining: bool = False,
    cost: StepCost = PRIORS["cpu"],
    load: Load = IDLE,
    lookahead_s: float = 1.0,
    pending_prompt_s: float = 0.0,
) -> Worker:
    return Worker(
        worker_id=WorkerId(name),
        incarnation=Incarnation(incarnation),
        role=role,
        address=f"{name}:1",
        transfer_address=f"{name}:2",
        layout_fingerprint=fingerprint,
        model=ModelLimits("model", 100, context_tokens, frozenset({1})),
        capacity=capacity,
        running=running,
        taken=taken,
        draining=draining,
        pid=1,
        cost=cost,
        load=load,
        prompt_lookahead_s=lookahead_s,
        pending=pending,
        pending_prompt_s=pending_prompt_s,
    )


def demand(
    name: str = "r",
    prompt: int = 10,
    most: int = 10,
    attempt: int = 0,
    *,
    emitted: int = 0,
    itl_target_s: float | None = None,
    cached: Mapping[WorkerId, int] | None = None,
) -> Demand:
    return Demand(RequestId(name), attempt, prompt, most, emitted, itl_target_s, cached or {})


@dataclass
class Router:
    """One router's half of the fleet, running."""

    store: FleetStore
    view: FleetView
    dispatcher: Dispatcher


@asynccontextmanager
async def router(
    url: str, fleet: str, config: DispatchConfig | None = None
) -> AsyncIterator[Router]:
    from services.router.dispatch import Dispatcher
    from services.router.fleet import FleetView

    store = FleetStore(url, fleet)
    view = FleetView(store, poll_s=0.05)
    dispatcher = Dispatcher(store, view, RouterId(new_id("router")), config)
    await view.start()
    await dispatcher.start()
    try:
        yield Router(store, view, dispatcher)
    finally:
        await dispatcher.close()
        await view.close()
        await store.close()


@asynccontextmanager
async def registered(
    url: str, fleet: str, *workers: Worker, period_s: float = 0.1
) -> AsyncIterator[list[Registry]]:
    """Workers that beat; each is described as it was given."""
    store = FleetStore(url, fleet)
    registries = [Registry(store, lambda w=one: w, period_s) for one in workers]
    for registry in registries:
        await registry.start()
    try:
        yield registries
    finally:
        for registry in registries:
            await registry.close()
        await store.close()


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Waits until the condition holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)
