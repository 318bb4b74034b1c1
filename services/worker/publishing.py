"""Publishes one sequence's exported blocks, in order, while the engine computes on.

Whatever is ready when the previous batch is through goes as one batch. Each exported block is
given back to the engine once its bytes were copied, or once publishing it was given up.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from baton.naming import BlobName, LeaseId
from engine.types import BlockRef
from services.common.telemetry import tracing
from services.common.transfer.client import OutgoingBlob, TransferClient
from services.worker.port import EnginePort


class Publication:
    """The blobs of one sequence, under one lease. An async context manager: at its end no copy
    runs and no exported block is kept."""

    def __init__(
        self,
        port: EnginePort,
        transfer: TransferClient,
        lease_id: LeaseId,
        *,
        deadline_s: float,
        seconds_per_token: float,
    ) -> None:
        self._port = port
        self._transfer = transfer
        self._lease_id = lease_id
        self._deadline_s = deadline_s
        self._seconds_per_token = seconds_per_token
        self._ready: list[BlockRef] = []
        self._more = asyncio.Event()
        self._finished = False
        self._task = asyncio.create_task(self._run())
        self.held: dict[BlobName, BlockRef] = {}
        """What the transfer service holds of all that was added, so far."""

    def add(self, blocks: Sequence[BlockRef]) -> None:
        """Takes over exported blocks, to be published after those added before."""
        if blocks:
            self._ready.extend(blocks)
            self._more.set()

    async def finish(self) -> None:
        """Waits until all is published, or the deadline after which the rest is given up."""
        self._finished = True
        self._more.set()
        await asyncio.wait({self._task}, timeout=self._deadline_s)
        await self._give_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._give_up()

    async def _give_up(self) -> None:
        self._task.cancel()
        left, self._ready = self._ready, []
        if left:
            self._port.release_exports(left)
        await asyncio.wait({self._task})  # ends with the copy that runs
        if not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        while self._ready or not self._finished:
            await self._more.wait()
            self._more.clear()
            batch, self._ready = self._ready, []
            if batch:
                await self._publish(batch)

    async def _publish(self, batch: list[BlockRef]) -> None:
        try:
            outgoing = [
                OutgoingBlob(
                    block.name,
                    self._port.block_view(block),
                    block.used_tokens * self._seconds_per_token,
                )
                for block in batch
            ]
            size = sum(blob.data.nbytes for blob in outgoing)
            with tracing.span("kv.publish", blobs=len(batch), bytes=size) as span:
                held = await self._transfer.publish(outgoing, self._lease_id, self._deadline_s)
                span.set_attribute("baton.held", len(held))
            self.held |= {block.name: block for block in batch if block.name in held}
        finally:
            self._port.release_exports(batch)
