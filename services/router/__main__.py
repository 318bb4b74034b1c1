"""`python -m services.router`: one router process."""

import asyncio
import logging
from functools import partial

from services.common import process
from services.router.assembly import assembled
from services.router.settings import RouterSettings

log = logging.getLogger("services.router")


async def serve(settings: RouterSettings, stop: asyncio.Event) -> None:
    """Serves until `stop`, then finishes what runs."""
    async with assembled(settings) as router:
        server = router.server
        await server.set_serving(True)
        process.write_ready_file(settings, settings.advertise or server.address)
        log.info("%s serves at %s", router.router_id, server.address)
        await stop.wait()

        await server.set_serving(False)
        if not await router.register.close(settings.grace_s):
            log.warning("%d requests did not end in time", router.register.running)


def main() -> None:
    """The process's entry point."""
    settings = process.read_settings(RouterSettings)
    process.run("router", settings, partial(serve, settings))


if __name__ == "__main__":
    main()
