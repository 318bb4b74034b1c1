"""Keeps a worker attached to the transfer service: there is a segment, or there will be again.

When the stream breaks the old mapping is let go of, once no copy runs into it, and only then
the next attachment begins: the service takes back all that was reserved under the old one.
Knows no blobs.
"""

import asyncio
import logging
import os
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from baton import errors
from baton.naming import WorkerId
from services.common.transfer.blobs import TransferStats
from services.common.transfer.calls import TransferCalls
from services.common.transfer.mapping import Mapping
from services.common.transfer.place import SegmentId

log = logging.getLogger(__name__)

_GRANT_DEADLINE_S = 60.0
"""For the first message: the service zeroes a segment's pages, some GB a second."""
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0
_PASSING = (errors.Unavailable, errors.DeadlineExceeded, errors.Cancelled, TimeoutError)
"""What attaching ends with when the service is away for a while."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The segment that we write, mapped."""

    segment_id: SegmentId
    mapping: Mapping


class Attachment:
    """Our segment, as far as there is one. Belongs to one event loop."""

    def __init__(
        self,
        calls: TransferCalls,
        worker_id: WorkerId,
        segment_bytes: int,
        stats: TransferStats,
        on_grant: Callable[[], None],
    ) -> None:
        """`on_grant` is told when the service gave a segment."""
        self._calls = calls
        self._worker_id = worker_id
        self._segment_bytes = segment_bytes
        self._stats = stats
        self._on_grant = on_grant
        self._segment: Segment | None = None
        self._news = asyncio.Event()
        self._refusal: errors.BatonError | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._current: asyncio.Task[None] | None = None

    @property
    def segment(self) -> Segment | None:
        """The segment to publish into now; None while not attached."""
        return self._segment

    async def start(self, first_attach_s: float) -> None:
        """Attaches for ever. Returns at the first segment or after `first_attach_s`.

        Raises what the service refuses the first attachment with, and stops then.
        """
        self._keeper = asyncio.create_task(self._keep())
        try:
            async with asyncio.timeout(first_attach_s):
                await self._news.wait()
        except TimeoutError:
            log.warning("not attached to the transfer service yet; going on without")
        if self._segment is None and self._refusal is not None:
            await self.close()
            raise self._refusal

    def reset(self) -> None:
        """Attaches anew, so that the service takes back places we may not know of."""
        if self._segment is not None and self._current is not None:
            self._segment = None
            self._current.cancel()

    async def close(self) -> None:
        """Lets go of the segment. Idempotent."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _keep(self) -> None:
        pause = _MIN_PAUSE_S
        try:
            while True:
                attached_before = self._stats.attachments
                self._current = asyncio.create_task(self._attach())
                await asyncio.wait([self._current])
                self._note_end(self._current)
                if self._stats.attachments > attached_before:
                    pause = _MIN_PAUSE_S
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _MAX_PAUSE_S)
        finally:
            if self._current is not None:
                self._current.cancel()
                await asyncio.wait([self._current])

    def _note_end(self, attaching: asyncio.Task[None]) -> None:
        error = None if attaching.cancelled() else attaching.exception()
        log.info("no longer attached: %s", error or "the stream ended")
        if error is None or isinstance(error, _PASSING):
            return
        if isinstance(error, OSError):
            error = errors.Unavailable(
                f"cannot map the segment ({error}): do this process and the transfer service "
                "share one /dev/shm?",
                reason="SEGMENT_NOT_SHARED",
            )
        elif not isinstance(error, errors.BatonError):
            log.error("attaching failed", exc_info=error)
            error = errors.InternalError(f"attaching failed: {error}")
        self._refusal = error
        self._news.set()

    async def _attach(self) -> None:
        """One attachment, from asking for it to the end of the stream."""
        grants = self._calls.attach(self._worker_id, os.getpid(), self._segment_bytes)
        async with aclosing(grants):
            async with asyncio.timeout(_GRANT_DEADLINE_S):
                grant = await anext(grants, None)
            if grant is None:
                return
            self._on_grant()
            segment = Segment(grant.segment_id, Mapping(grant.path, writable=True))
            self._populate(segment.mapping)
            self._segment, self._refusal = segment, None
            self._stats.attachments += 1
            self._news.set()
            try:
                await anext(grants, None)
            finally:
                self._segment = None
                segment.mapping.retire()
                await segment.mapping.wait_closed()

    def _populate(self, mapping: Mapping) -> None:
        """Maps the pages in a thread; copies need not wait for it."""
        mapping.pin()
        populating = asyncio.create_task(asyncio.to_thread(mapping.populate))
        populating.add_done_callback(lambda _: mapping.unpin())
