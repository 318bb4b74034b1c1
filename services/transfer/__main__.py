"""Runs the transfer service: `python -m services.transfer`."""

import asyncio

from services.common import process
from services.transfer import server
from services.transfer.settings import TransferSettings


def main() -> None:
    """Serves until SIGTERM."""
    settings = process.read_settings(TransferSettings)

    nixl_used = False

    async def serve(stop: asyncio.Event) -> None:
        nonlocal nixl_used
        running = await server.start(settings)
        process.write_ready_file(settings, running.address)
        await stop.wait()
        await running.stop()
        nixl_used = running.peers.nixl_used

    process.run("transfer", settings, serve)
    if nixl_used:
        process.leave()  # its native threads may crash while the interpreter ends


if __name__ == "__main__":
    main()
