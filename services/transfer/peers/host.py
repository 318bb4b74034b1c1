"""All that this host has to do with others, put together: reads, offers, and NIXL or not."""

import asyncio
import logging
from collections.abc import Callable

from services.common.security import PLAIN, Security
from services.common.transfer.copying import CopyThreads
from services.transfer.attachments import Attachments
from services.transfer.peers import nixl
from services.transfer.peers.choice import ChoosingReader
from services.transfer.peers.landing import Landing
from services.transfer.peers.nixl import NixlAgent, NixlFailed
from services.transfer.peers.nixl_offers import NixlOffers
from services.transfer.peers.nixl_reader import NixlReader
from services.transfer.peers.offers import Offers
from services.transfer.peers.pulls import Pulls
from services.transfer.peers.reader import PeerReader
from services.transfer.peers.segment import PeerSegment
from services.transfer.peers.silence import WaryReader
from services.transfer.peers.stream import StreamReader
from services.transfer.room import RoomQueue
from services.transfer.settings import TransferSettings
from services.transfer.store import BlobStore

log = logging.getLogger(__name__)

_THREADS = 2
"""One read from us should not hold up one of ours."""

WrapReader = Callable[[PeerReader], PeerReader]
"""Puts something around a reader."""


def plain(reader: PeerReader) -> PeerReader:
    """The reader itself."""
    return reader


class Peers:
    """Reads from other hosts, and offers to them. Needs a running loop."""

    def __init__(
        self,
        store: BlobStore,
        room: RoomQueue,
        attachments: Attachments,
        settings: TransferSettings,
        wrap_reader: WrapReader,
        security: Security = PLAIN,
    ) -> None:
        self.settings = settings
        self._threads = CopyThreads(_THREADS, None)
        self._segment = PeerSegment(store, room, attachments, settings.peer_segment_bytes)
        self._stream = StreamReader(security)
        self._agent: NixlAgent | None = None
        self._nixl_reader: NixlReader | None = None
        self.nixl: NixlOffers | None = None
        """None where NIXL is not in use."""
        reader: PeerReader = self._stream
        if wants_nixl(settings, security) and nixl.module_name() is not None:
            self._agent = NixlAgent()
            self.nixl = NixlOffers(store, self._agent)
            by_nixl = self._nixl_reader = NixlReader(self._agent, self._threads, security)
            auto = settings.peer_transport == "auto"
            reader = ChoosingReader(self._stream, by_nixl) if auto else by_nixl
        self._reader = WaryReader(wrap_reader(reader), asyncio.get_running_loop().time)
        landing = Landing(self._segment, self._threads, settings.peer_silence_s)
        self.pulls = Pulls(store, landing, self._reader)
        self.offers = Offers(store, self._threads)

    @property
    def nixl_used(self) -> bool:
        """Whether NIXL runs in this process."""
        return self._agent is not None and self._agent.used

    async def start(self) -> None:
        """Raises OSError where NIXL is demanded and can't be had."""
        if self.settings.peer_transport != "nixl":
            return
        if self._agent is None:
            raise OSError("--peer-transport=nixl needs NIXL: pip install '.[nixl]'")
        try:
            await self._agent.start()
        except NixlFailed as error:
            raise OSError(f"NIXL does not start: {error}") from error

    async def sweep(self) -> None:
        """Lets go of what is not in use any more."""
        self.offers.drop_stale()
        await self._stream.drop_idle()
        if self._nixl_reader is not None and self.nixl is not None:
            await self._nixl_reader.drop_idle()
            if self.nixl_used:
                await self.nixl.drop_stale()

    async def close(self) -> None:
        """Ends all reads and unmaps all; the own segment is the attachments' to remove."""
        await self.pulls.close()
        await self._reader.close()
        await self._segment.close()
        self.offers.close()
        if self.nixl is not None:
            await self.nixl.close()
        self._threads.close()
        if self._agent is not None:
            self._agent.close()


def wants_nixl(settings: TransferSettings, security: Security) -> bool:
    """NIXL encrypts nothing: where calls are encrypted, it must have been asked for by name."""
    if settings.peer_transport == "auto":
        return not security.encrypts_calls
    return settings.peer_transport == "nixl"
