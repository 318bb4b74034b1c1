"""One sequence on the engine, from room to release: admit, fetch its KV, start, let go.

Whatever happens inside the `async with`, at its end the sequence holds nothing: copies have
ended, the engine has freed it, exports that nobody read are given back. Knows the engine's
port and the transfer client; no wire, no role.
"""

import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

from baton.errors import InvalidRequest, LostRace
from baton.naming import BlobName, LeaseId
from engine.errors import NoRoom, RequestError
from engine.types import Admission, BlockRef, Request
from services.common.background import Background
from services.common.telemetry import tracing
from services.common.telemetry.tally import SECONDS_BUCKETS, Tally
from services.common.transfer.client import IncomingBlob, TransferClient
from services.worker.growth import Growth
from services.worker.outbox import SequenceStream
from services.worker.port import EnginePort
from services.worker.runs import PromptWork, Run


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came from the transfer service for a sequence."""

    wanted: tuple[BlockRef, ...]
    blobs: tuple[BlockRef, ...]
    bytes: int
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether everything that was wanted came."""
        return len(self.blobs) == len(self.wanted)


@dataclass(frozen=True, slots=True)
class StartedSequence:
    """A sequence that the engine runs."""

    stream: SequenceStream
    fetched: Fetched
    cached_tokens: int
    """Tokens that need no computing."""


class Sequences:
    """Opens sequences on the engine."""

    def __init__(
        self, port: EnginePort, transfer: TransferClient, background: Background, fetch_s: float
    ) -> None:
        self._port = port
        self._transfer = transfer
        self._background = background
        self._fetch_s = fetch_s
        self.fetches = Tally(SECONDS_BUCKETS)
        """Seconds that sequences waited for KV from the transfer service."""
        self.on_prompt: Callable[[int], None] = lambda _: None
        """Told, of each sequence that was admitted, how many tokens it may have to compute."""

    async def held_elsewhere(self, request: Request) -> frozenset[BlobName]:
        """Blobs of the transfer service that could serve a prefix of `request`."""
        return await self._transfer.lookup(await self._port.names(request))

    @asynccontextmanager
    async def open(
        self,
        run: Run,
        request: Request,
        available: Collection[BlobName],
        lease_id: LeaseId,
        source_address: str = "",
    ) -> AsyncIterator[StartedSequence]:
        """The sequence of `request`, started, with what could be had of `available`.

        `source_address` is that of another host's transfer service that holds them, if any.
        Raises LostRace with reason NO_ROOM where the engine has no room for it now,
        InvalidRequest where it never can have.
        """
        key = request.request_id
        growth = Growth(run, request, self._port.config.growth_tokens)
        stream = self._port.outbox.open(key, growth.sampled)
        try:
            admission = await self._admit(request, available)
            cached = admission.cached_tokens
            run.admitted(PromptWork(len(request.tokens) - cached, cached))
            self.on_prompt(len(request.tokens) - cached)
            fetched = await self._fetch(admission, lease_id, source_address)
            names = frozenset(block.name for block in fetched.blobs)
            cached = await self._port.start_sequence(key, names)
            run.started()
            yield StartedSequence(stream, fetched, cached)
        finally:
            await self._background.complete(self._let_go(key))

    async def _admit(self, request: Request, available: Collection[BlobName]) -> Admission:
        try:
            return await self._port.admit(request, available)
        except NoRoom as error:
            raise LostRace(f"no room now: {error}", reason="NO_ROOM") from error
        except RequestError as error:
            raise InvalidRequest(error.field, str(error)) from error

    async def _fetch(self, admission: Admission, lease_id: LeaseId, source_address: str) -> Fetched:
        wanted = admission.missing
        if not wanted:
            return Fetched((), (), 0, 0.0)
        began = time.monotonic()
        views = {block.name: self._port.block_view(block) for block in wanted}
        with tracing.span("kv.fetch", wanted=len(wanted), source=source_address or "here") as span:
            filled = await self._transfer.fetch(
                [IncomingBlob(name, view) for name, view in views.items()],
                lease_id,
                self._fetch_s,
                source_address=source_address,
            )
            size = sum(views[name].nbytes for name in filled)
            span.set_attributes({"baton.blobs": len(filled), "baton.bytes": size})
        seconds = time.monotonic() - began
        self.fetches.observe(seconds)
        blobs = tuple(block for block in wanted if block.name in filled)
        return Fetched(wanted, blobs, size, seconds)

    async def _let_go(self, key: str) -> None:
        try:
            await self._port.cancel(key)
        finally:
            self._port.outbox.close(key)
