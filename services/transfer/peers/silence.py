"""Whoever was silent is not asked again for a while, which grows from one silence to the next.

Who fails counts as silent, too. Knows neither how bytes travel nor what is left to do without.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from baton import errors
from baton.naming import BlobName
from services.transfer.leases import Clock
from services.transfer.peers.reader import PEER_PAUSED, PeerReader, Piece

SILENT_S = 0.5
"""Silence of that length counts."""
_FIRST_S, _LONGEST_S = 0.25, 4.0
_FORGOTTEN_S = 600.0
"""Who was not asked for so long after a pause is forgotten: hosts leave for good."""


@dataclass(slots=True)
class _Pause:
    length_s: float
    until: float
    trying: bool = False
    """Whether it is over, and someone finds out how things are."""


class Silences:
    """Sources that failed lately. Pure; not thread-safe."""

    def __init__(
        self, clock: Clock, first_s: float = _FIRST_S, longest_s: float = _LONGEST_S
    ) -> None:
        """Pauses double from `first_s` to `longest_s`."""
        self._clock = clock
        self._first_s, self._longest_s = first_s, longest_s
        self._pauses: dict[str, _Pause] = {}

    def try_now(self, source: str) -> bool:
        """Whether to ask `source` now. After a pause one may, and the next one a pause later."""
        pause = self._pauses.get(source)
        if pause is None:
            return True
        if self._clock() < pause.until:
            return False
        pause.until, pause.trying = self._clock() + pause.length_s, True
        return True

    def has_failed(self, source: str) -> bool:
        """Whether `source` has not answered since it failed."""
        return source in self._pauses

    def failed(self, source: str) -> None:
        """Begins a pause, or a longer one where this was a new try; others change nothing."""
        pause = self._pauses.get(source)
        if pause is None:
            self._forget_old()
            pause = self._pauses[source] = _Pause(self._first_s, 0.0)
        elif pause.trying:
            pause.length_s = min(2 * pause.length_s, self._longest_s)
            pause.trying = False
        else:
            return
        pause.until = self._clock() + pause.length_s

    def _forget_old(self) -> None:
        oldest = self._clock() - _FORGOTTEN_S
        self._pauses = {key: one for key, one in self._pauses.items() if one.until > oldest}

    def answered(self, source: str) -> None:
        """Forgets what was."""
        self._pauses.pop(source, None)


async def noticing(
    reading: AsyncGenerator[Piece, None], source: str, silences: Silences, clock: Clock
) -> AsyncGenerator[Piece, None]:
    """The pieces of a read from `source`, as they come; notes whether it answers or fails.

    Whoever cancels the read after a while without a piece does so because of the silence.
    """
    asked = clock()
    try:
        async with aclosing(reading) as pieces:
            async for piece in pieces:
                silences.answered(source)
                yield piece
                asked = clock()
    except errors.BatonError:
        silences.failed(source)
        raise
    except asyncio.CancelledError:
        if clock() - asked > SILENT_S:
            silences.failed(source)
        raise
    silences.answered(source)


class WaryReader:
    """A PeerReader that leaves silent sources alone for a while. Belongs to one event loop."""

    def __init__(self, inner: PeerReader, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._silences = Silences(clock)

    async def read(self, source: str, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        """See PeerReader. Raises Unavailable at once where the source was silent lately."""
        if not self._silences.try_now(source):
            raise errors.Unavailable("it was silent lately", reason=PEER_PAUSED)
        reading = self._inner.read(source, names)
        async with aclosing(noticing(reading, source, self._silences, self._clock)) as pieces:
            async for piece in pieces:
                yield piece

    async def close(self) -> None:
        """See PeerReader."""
        await self._inner.close()
