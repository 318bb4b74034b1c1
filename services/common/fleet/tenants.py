"""What tenants have of the fleet, over all of its routers: their requests' pace, and their streams.

Knows no tenants' limits: the caller says what is allowed. A stream is kept for seconds after its
router's last word, so those of a dead router free themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from services.common.fleet.scripts import Scripts
from services.common.fleet.tickets import micros

STREAM_LIFE_S = 3.0
"""A stream of which its router says nothing for longer has ended."""

Stream = tuple[str, str]
"""A tenant, and one of its requests."""


class Entry(Enum):
    """What became of a request at the tenant's limits."""

    IN = "in"
    TOO_FAST = "rate"
    TOO_MANY = "streams"


@dataclass(frozen=True, slots=True)
class Entered:
    """Redis' answer to a request."""

    entry: Entry
    wait_s: float
    """Until the pace allows one more; 0 where it is not the pace that refuses."""
    routers: int
    """That serve the fleet."""


class TenantStreams:
    """The tenants of one fleet. Methods raise Unavailable where Redis does not answer."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    async def enter(self, stream: Stream, interval_s: float, burst: int, streams: int) -> Entered:
        """Lets a request in where its tenant's pace and its streams allow it, both at once.

        `interval_s` between requests in the long run, of which `burst` may come at once; at most
        `streams` at a time. 0: any. Asking again changes nothing.
        """
        entry, wait, _, routers = await self._scripts.run(
            "tenant_enter", *stream, micros(interval_s), burst, streams, micros(STREAM_LIFE_S)
        )
        return Entered(Entry(entry.decode()), wait / 1e6, routers)

    async def renew(self, streams: Sequence[Stream]) -> None:
        """These run still, whether Redis knows of them or not."""
        if streams:
            flat = (part for stream in streams for part in stream)
            await self._scripts.run("tenant_renew", micros(STREAM_LIFE_S), *flat)

    async def leave(self, streams: Sequence[Stream]) -> None:
        """These ended; those that are gone already do not matter."""
        if streams:
            await self._scripts.run("tenant_leave", *(part for one in streams for part in one))
