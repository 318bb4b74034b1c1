"""`python -m services.gateway`: one gateway process. Wires its parts and nothing else."""

import asyncio
import logging
from functools import partial

from baton.client import AsyncClient
from services.common import process
from services.common.gate import Gate
from services.common.telemetry.metrics import measured
from services.gateway import metrics
from services.gateway.app import make_app
from services.gateway.page.serving import page
from services.gateway.security import https_options, router_tls
from services.gateway.server import HttpServer
from services.gateway.settings import GatewaySettings

log = logging.getLogger("services.gateway")


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serves until `stop`, then finishes what runs."""
    tls, https = router_tls(settings), https_options(settings)
    gate = Gate()
    name = settings.process_name or settings.advertise or settings.address
    async with (
        AsyncClient(settings.router, tls=tls) as client,
        measured("gateway", name, settings.metrics_address) as measures,
    ):
        app = make_app(client, settings, gate)
        metrics.install(app, measures)
        async with (
            page(app, settings, tls),
            HttpServer(app, settings.address, **https) as server,
        ):
            measures.health.set_ready(True)
            process.write_ready_file(settings, settings.advertise or server.address)
            log.info("serves at %s for routers at %s", server.address, settings.router)
            await stop.wait()
            measures.health.set_ready(False)
            if not await gate.close(settings.grace_s):
                log.warning("%d requests did not end in time", gate.inside)


def main() -> None:
    """The process's entry point."""
    settings = process.read_settings(GatewaySettings)
    process.run("gateway", settings, partial(serve, settings))


if __name__ == "__main__":
    main()
