"""A host with its transfer service as a process, to be stopped, killed and restarted."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

from baton.v1 import transfer_pb2
from services.common import rpc
from services.common.transfer.client import TransferClient
from tests.support.transfer import Status, TransferProcess, make_client, stub


class Host:
    """A directory for segments, and what uses it: all ended by `close`."""

    def __init__(self, ready: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="contract-"))
        self.ready = ready
        self.service = TransferProcess(self.directory, ready)
        self.address = self.service.address
        self.clients: list[TransferClient] = []

    async def client(self) -> TransferClient:
        client = make_client(self.address)
        self.clients.append(client)
        await client.start()
        assert client.attached
        return client

    def restart(self) -> None:
        """A new service where the old one, dead by now, was."""
        self.service = TransferProcess(self.directory, self.ready, self.address)

    async def status(self) -> Status:
        async with rpc.channel(self.address) as channel:
            request = transfer_pb2.GetTransferStatusRequest(check_integrity=True)
            return await stub(channel).GetTransferStatus(request, timeout=5, wait_for_ready=True)

    @property
    def segments(self) -> list[str]:
        return os.listdir(self.directory)

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        if self.service.process.poll() is None:
            self.service.signal(signal.SIGCONT)
            assert self.service.terminate() == 0
            assert self.segments == []
        shutil.rmtree(self.directory)
