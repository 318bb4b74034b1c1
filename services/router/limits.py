"""What each tenant may have of the fleet: requests a second, and streams at a time. Pure.

    acme=10/s burst:20 streams:4, *=2/s streams:1

Tenants are separated by commas, a tenant's limits by spaces. `10/s` (or `600/min`) are requests
in the long run, `burst` those that may come at once (else as many as in a second, at least one),
`streams` those in progress. `*` is each tenant that is not named. What is not said has no limit.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

ANYONE = "*"
_MOST = 1_000_000
_TENANT = re.compile(r"[A-Za-z0-9_.:-]{1,64}|\*")
_RATE = re.compile(r"(\d+(?:\.\d+)?)/(s|min)")
_COUNT = re.compile(r"(burst|streams):(\d+)")
_SECONDS = {"s": 1.0, "min": 60.0}


@dataclass(frozen=True, slots=True)
class Limit:
    """One tenant's."""

    per_second: float = 0.0
    """Requests; 0: no limit."""
    burst: int = 1
    """Requests that may come at once, after a while without any."""
    streams: int = 0
    """Requests in progress; 0: no limit."""

    @property
    def interval_s(self) -> float:
        """Between two requests in the long run; 0: no limit."""
        return 1 / self.per_second if self.per_second else 0.0

    def share(self, routers: int) -> "Limit":
        """One router's part, where routers can't tell each other. At least one stream."""
        routers = max(1, routers)
        return Limit(
            self.per_second / routers,
            max(1, self.burst // routers),
            max(1, self.streams // routers) if self.streams else 0,
        )


@dataclass(frozen=True, slots=True)
class LimitTable:
    """All tenants' limits."""

    by_tenant: Mapping[str, Limit] = field(default_factory=dict)

    def of(self, tenant: str) -> Limit | None:
        """None: the tenant has no limit."""
        return self.by_tenant.get(tenant) or self.by_tenant.get(ANYONE)


def parse_limits(text: str) -> LimitTable:
    """Raises ValueError, which names the part that is wrong."""
    limits: dict[str, Limit] = {}
    for part in filter(str.strip, text.split(",")):
        tenant, equals, words = part.partition("=")
        tenant = tenant.strip()
        if not (equals and words.split() and _TENANT.fullmatch(tenant)):
            raise ValueError(f"{part.strip()!r} is not of the form tenant=10/s burst:20 streams:4")
        if tenant in limits:
            raise ValueError(f"{tenant!r} has limits already")
        limits[tenant] = _limit(words.split())
    return LimitTable(limits)


def _limit(words: list[str]) -> Limit:
    rate = 0.0
    counts: dict[str, int] = {}
    for word in words:
        if match := _RATE.fullmatch(word):
            rate = float(match[1]) / _SECONDS[match[2]]
            if not 1 / _MOST <= rate <= _MOST:
                raise ValueError(f"{word!r} is not a rate from {1 / _MOST:g}/s to {_MOST}/s")
        elif match := _COUNT.fullmatch(word):
            counts[match[1]] = number = int(match[2])
            if not 1 <= number <= _MOST:
                raise ValueError(f"{word!r} is not from 1 to {_MOST}")
        else:
            raise ValueError(f"{word!r} is none of 10/s, 600/min, burst:20 and streams:4")
    if "burst" in counts and not rate:
        raise ValueError("burst needs a rate")
    return Limit(rate, counts.get("burst", max(1, math.floor(rate))), counts.get("streams", 0))


class Pacer:
    """Rates of tenants by a clock that the caller has: the same rule as tenant_enter.lua.

    A tenant's next request is due one interval after the one before; it may come early by what
    the burst allows. Remembers the tenants that came last, however many there are.
    """

    def __init__(self, most: int = 4096) -> None:
        self._due_s: dict[str, float] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._due_s)

    def wait_s(self, tenant: str, limit: Limit, now_s: float) -> float:
        """0: the request may come, and is counted. Else the seconds until one may."""
        if not limit.interval_s:
            return 0.0
        due_s = max(now_s, self._due_s.get(tenant, now_s)) + limit.interval_s
        early_s = due_s - now_s - limit.burst * limit.interval_s
        if early_s > 1e-9:
            return early_s
        self._due_s.pop(tenant, None)
        self._due_s[tenant] = due_s
        if len(self._due_s) > self._most:
            del self._due_s[next(iter(self._due_s))]
        return 0.0
