"""`python -m services.planner`: one planner process. Wires its parts and nothing else."""

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial

from services.common import process, rpc
from services.common.fleet.store import FleetStore
from services.common.security import Security
from services.common.telemetry.metrics import measured
from services.planner.assembly import orchestrator
from services.planner.loop import PlannerLoop
from services.planner.metrics import PlannerMetrics
from services.planner.planner import Planner
from services.planner.settings import PlannerSettings
from services.planner.standing import Standing

log = logging.getLogger("services.planner")

_STOP_S = 1.0


async def serve(settings: PlannerSettings, stop: asyncio.Event) -> None:
    """Plans until `stop`."""
    security = await asyncio.to_thread(Security.of, settings)
    security.check_bind(settings.address)
    async with AsyncExitStack() as open_parts:
        name = settings.process_name or settings.identity or "planner"
        metrics = await open_parts.enter_async_context(
            measured("planner", name, settings.metrics_address)
        )
        store = FleetStore(settings.redis, settings.fleet)
        open_parts.push_async_callback(store.close)
        scaler, leadership = await orchestrator(settings, open_parts)
        planner, standing = Planner(settings.config), Standing()
        dry_run = settings.dry_run
        loop = PlannerLoop(planner, store, scaler, leadership, standing, dry_run=dry_run)
        metrics.add(PlannerMetrics(planner, standing, leadership, dry_run=dry_run).source())
        metrics.health.watch(loop.trouble)
        server = await rpc.serve(settings.address, [], [], security, process=metrics.health)
        open_parts.push_async_callback(server.stop, _STOP_S)
        await leadership.start()
        await server.set_serving(True)
        process.write_ready_file(settings, settings.advertise or server.address)
        does = "plans without acting" if dry_run else "plans"
        log.info("%s; health at %s", does, server.address)
        await loop.run(stop)
        await server.set_serving(False)


def main() -> None:
    """The process's entry point."""
    settings = process.read_settings(PlannerSettings)
    process.run("planner", settings, partial(serve, settings))


if __name__ == "__main__":
    main()
