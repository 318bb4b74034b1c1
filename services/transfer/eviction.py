"""Which cached blob goes first: GreedyDual-Size.

A blob's priority is the age at its last use plus its recompute cost per byte; the lowest goes,
and the age becomes the victim's priority. So what is cheap to compute again goes early, and
what is dear goes too, once enough has been used after it. Of equals the least lately added
goes. Knows no segments or leases: it holds exactly the blobs that may be evicted.
"""

import heapq
from dataclasses import dataclass
from itertools import count

from services.common.integrity import ensure
from services.common.transfer.place import Generation


@dataclass(frozen=True, slots=True)
class _Entry:
    priority: float
    order: int
    size: int


class GreedyDual:
    """The evictable blobs of one segment, by the generation of their place. Not thread-safe."""

    def __init__(self) -> None:
        self.evictable_bytes = 0
        self._age = 0.0
        self._order = count()
        self._entries: dict[Generation, _Entry] = {}
        self._heap: list[tuple[float, int, Generation]] = []  # with leftovers of removed entries

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, blob: Generation) -> bool:
        return blob in self._entries

    def add(self, blob: Generation, size: int, recompute_seconds: float) -> None:
        """Makes a blob evictable; that counts as a use of it."""
        priority = self._age + recompute_seconds / max(size, 1)
        entry = self._entries[blob] = _Entry(priority, next(self._order), size)
        self.evictable_bytes += size
        heapq.heappush(self._heap, (entry.priority, entry.order, blob))

    def remove(self, blob: Generation) -> None:
        """Protects or forgets a blob. Raises KeyError where it is not evictable."""
        self.evictable_bytes -= self._entries.pop(blob).size
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._rebuild()

    def pop(self) -> Generation:
        """Removes and returns the next victim. Raises IndexError where there is none."""
        while True:
            priority, order, blob = heapq.heappop(self._heap)
            entry = self._entries.get(blob)
            if entry is not None and entry.order == order:
                self._age = priority
                self.evictable_bytes -= self._entries.pop(blob).size
                return blob

    def _rebuild(self) -> None:
        self._heap = [(entry.priority, entry.order, blob) for blob, entry in self._entries.items()]
        heapq.heapify(self._heap)

    def check_integrity(self) -> None:
        """Raises BrokenInvariant unless heap, entries and byte count agree."""
        queued = set(self._heap)
        for blob, entry in self._entries.items():
            ensure(
                (entry.priority, entry.order, blob) in queued,
                f"eviction: blob {blob} can never be evicted",
            )
            ensure(entry.priority >= self._age, f"eviction: blob {blob} is older than the age")
        total = sum(entry.size for entry in self._entries.values())
        ensure(total == self.evictable_bytes, "eviction: wrong count of evictable bytes")
