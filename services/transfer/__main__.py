"""Runs the transfer service: `python -m services.transfer`."""

import asyncio

from services.common import process
from services.transfer import server
from services.transfer.settings import TransferSettings


def main() -> None:
    """Serves until SIGTERM."""
    settings = process.read_settings(TransferSettings)

    async def serve(stop: asyncio.Event) -> None:
        running = await server.start(settings)
        process.write_ready_file(settings, running.address)
        await stop.wait()
        await running.stop()

    process.run("transfer", settings, serve)


if __name__ == "__main__":
    main()
