"""Leases: which blobs somebody relies on, and until when.

A lease begins with its first use and lives until it is released or its time is over. One that
was released stays ended: a late message of an ended request can't bring it back. Knows only
the generations of blobs' places.
"""

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from baton.naming import LeaseId
from services.common.integrity import ensure
from services.common.transfer.place import Generation

Clock = Callable[[], float]
"""Seconds that never go back."""

_REMEMBER_ENDED_S = 60.0


@dataclass(slots=True)
class _Lease:
    expires_at: float
    blobs: dict[Generation, None] = field(default_factory=dict)  # in the order of their adding


class LeaseBook:
    """All leases in force. Not thread-safe; time passes only in `expire`."""

    def __init__(self, clock: Clock) -> None:
        self.expired = 0
        """Leases that ended by their time."""
        self._clock = clock
        self._leases: dict[LeaseId, _Lease] = {}
        self._holders: Counter[Generation] = Counter()
        self._deadlines: list[tuple[float, LeaseId]] = []  # with leftovers of prolonged leases
        self._ended: OrderedDict[LeaseId, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, lease_id: LeaseId) -> bool:
        return lease_id in self._leases

    @property
    def leased_blobs(self) -> int:
        """Blobs under at least one lease."""
        return len(self._holders)

    def is_leased(self, blob: Generation) -> bool:
        """Whether any lease in force holds the blob."""
        return blob in self._holders

    def add(self, lease_id: LeaseId, blobs: Iterable[Generation], ttl: float) -> bool:
        """Puts blobs under a lease and prolongs it; False where it was released before."""
        if lease_id in self._ended:
            return False
        lease = self._leases.get(lease_id)
        if lease is None:
            lease = self._leases[lease_id] = _Lease(-math.inf)
        self._prolong(lease_id, lease, ttl)
        for blob in blobs:
            if blob not in lease.blobs:
                lease.blobs[blob] = None
                self._holders[blob] += 1
        return True

    def renew(self, lease_id: LeaseId, ttl: float) -> bool:
        """Prolongs a lease; False where there is none."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        self._prolong(lease_id, lease, ttl)
        return True

    def release(self, lease_id: LeaseId) -> list[Generation]:
        """Ends a lease for good; returns the blobs that no lease holds any more, in order."""
        self._ended[lease_id] = self._clock() + _REMEMBER_ENDED_S
        self._ended.move_to_end(lease_id)
        return self._end(lease_id)

    def expire(self) -> list[Generation]:
        """Ends leases whose time is over; returns the blobs that no lease holds any more."""
        now = self._clock()
        freed: list[Generation] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, lease_id = heapq.heappop(self._deadlines)
            lease = self._leases.get(lease_id)
            if lease is not None and lease.expires_at == deadline:
                self.expired += 1
                freed += self._end(lease_id)
        while self._ended and next(iter(self._ended.values())) <= now:
            self._ended.popitem(last=False)
        return freed

    def forget(self, blob: Generation) -> None:
        """Drops a blob that is gone from all leases."""
        if self._holders.pop(blob, 0):
            for lease in self._leases.values():
                lease.blobs.pop(blob, None)

    def _prolong(self, lease_id: LeaseId, lease: _Lease, ttl: float) -> None:
        expires_at = self._clock() + ttl
        if expires_at > lease.expires_at:
            lease.expires_at = expires_at
            heapq.heappush(self._deadlines, (expires_at, lease_id))

    def _end(self, lease_id: LeaseId) -> list[Generation]:
        lease = self._leases.pop(lease_id, None)
        freed: list[Generation] = []
        for blob in lease.blobs if lease is not None else ():
            self._holders[blob] -= 1
            if not self._holders[blob]:
                del self._holders[blob]
                freed.append(blob)
        return freed

    def check_integrity(self) -> None:
        """Raises BrokenInvariant unless holders and deadlines agree with the leases."""
        holders = Counter(blob for lease in self._leases.values() for blob in lease.blobs)
        ensure(holders == self._holders, "leases: wrong count of holders")
        queued = set(self._deadlines)
        for lease_id, lease in self._leases.items():
            ensure((lease.expires_at, lease_id) in queued, f"leases: {lease_id} never expires")
            ensure(lease_id not in self._ended, f"leases: {lease_id} came back after its end")
