"""The names of the blobs that one process holds, and who watches them come and go.

A watcher gets all names first, then net changes in batches. Changes wait for watchers in one
shared ring of fixed size: a watcher that falls behind further gets the whole list anew, so a
slow one costs no memory but the list that is being sent to it. Knows no clock but the event
loop's, and nothing of bytes, leases or wires but the message at its end.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from baton.naming import NAME_BYTES, BlobName
from baton.v1 import kv_pb2
from services.common.integrity import ensure

MAX_NAMES = 16_384
"""Names in one message, added and removed together."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is held and no longer held since a stream's last message."""

    sequence: int
    """Number on its stream, from 1."""
    reset: bool
    """Forget everything before: `added` begins the whole list anew."""
    added: tuple[BlobName, ...] = ()
    removed: tuple[BlobName, ...] = ()

    def to_message(self) -> kv_pb2.BlobChanges:
        """The wire form."""
        return kv_pb2.BlobChanges(
            sequence=self.sequence, reset=self.reset, added=self.added, removed=self.removed
        )

    @classmethod
    def from_message(cls, message: kv_pb2.BlobChanges) -> "Change":
        """The change that `message` tells; what can't be a name is left out."""
        return cls(message.sequence, message.reset, _names(message.added), _names(message.removed))


def _names(values: Iterable[bytes]) -> tuple[BlobName, ...]:
    return tuple(BlobName(value) for value in values if len(value) == NAME_BYTES)


class BlobLog:
    """Names held now, and the latest changes. Belongs to one event loop once it is watched.

    Every mutation is idempotent, O(1) a name, and may be made before there is a loop.
    """

    def __init__(self, batch_s: float = 0.05, keep: int = 65_536) -> None:
        """`batch_s`: how long changes are gathered; `keep`: how many the ring remembers."""
        self._batch_s = batch_s
        self._keep = keep
        self._held: dict[BlobName, None] = {}
        # Change number i (from 0) is at i % keep. Those of one name alternate.
        self._ring: list[BlobName] = []
        self._kinds = bytearray(keep)  # 1: added
        self._end = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = asyncio.Event()

    @property
    def names(self) -> Collection[BlobName]:
        """The names held now, in the order of their coming; for reading only."""
        return self._held.keys()

    def __contains__(self, name: BlobName) -> bool:
        return name in self._held

    def __len__(self) -> int:
        return len(self._held)

    def add(self, name: BlobName) -> None:
        """The name is held now."""
        if name not in self._held:
            self._held[name] = None
            self._note(name, True)

    def remove(self, name: BlobName) -> None:
        """The name is not held any more."""
        if name in self._held:
            del self._held[name]
            self._note(name, False)

    def change(self, added: Iterable[BlobName], removed: Iterable[BlobName]) -> None:
        """Removes, then adds: a name in both is held afterwards."""
        for name in removed:
            self.remove(name)
        for name in added:
            self.add(name)

    def reset(self, names: Iterable[BlobName]) -> None:
        """Just these names are held now; watchers hear of the differences."""
        new = dict.fromkeys(names)
        self.change(new, [name for name in self._held if name not in new])

    def close(self) -> None:
        """Ends all watching, now and later, without an error."""
        self._closed.set()
        self._wake()

    async def watch(self) -> AsyncGenerator[Change, None]:
        """All names now, then net changes about every `batch_s` as long as there are any.

        Messages are numbered from 1. A list begins with a message that resets, even when it is
        empty, and goes on in messages that don't. Ends when the log is closed.
        """
        sequence, cursor = 0, -1
        while not self._closed.is_set():
            if cursor < 0 or cursor < self._end - self._keep:
                changes = _listed(tuple(self._held))
                cursor = self._end
            elif cursor < self._end:
                changes = _split(*self._net(cursor))
                cursor = self._end
            else:
                await self._news()
                await self._gather()
                continue
            for reset, added, removed in changes:
                sequence += 1
                yield Change(sequence, reset, added, removed)
                if self._closed.is_set():
                    return

    def _note(self, name: BlobName, added: bool) -> None:
        index = self._end % self._keep
        if index == len(self._ring):
            self._ring.append(name)
        else:
            self._ring[index] = name
        self._kinds[index] = added
        self._end += 1
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def _news(self) -> None:
        """Waits for a change or the end."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    async def _gather(self) -> None:
        """Waits for more changes, unless the log is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._batch_s):
                await self._closed.wait()

    def _net(self, cursor: int) -> tuple[list[BlobName], list[BlobName]]:
        """Names that came and that went since `cursor`, which the ring still has."""
        first: dict[BlobName, int] = {}
        for number in range(cursor, self._end):
            index = number % self._keep
            first.setdefault(self._ring[index], self._kinds[index])
        added = [name for name, came in first.items() if came and name in self._held]
        removed = [name for name, came in first.items() if not came and name not in self._held]
        return added, removed

    def check_integrity(self) -> None:
        """Raises BrokenInvariant unless the ring's latest changes led to the names held now."""
        ensure(len(self._ring) == min(self._end, self._keep), "blob log: wrong length of the ring")
        last: dict[BlobName, int] = {}
        for number in range(max(0, self._end - self._keep), self._end):
            name, kind = self._ring[number % self._keep], self._kinds[number % self._keep]
            ensure(last.get(name) != kind, f"blob log: {name.hex()} changed to what it was")
            last[name] = kind
        for name, kind in last.items():
            ensure(bool(kind) == (name in self._held), f"blob log: {name.hex()} was not noted")


_Parts = Iterator[tuple[bool, tuple[BlobName, ...], tuple[BlobName, ...]]]
"""Of each message: whether it resets, what is added and removed."""


def _listed(names: tuple[BlobName, ...]) -> _Parts:
    for start in range(0, max(1, len(names)), MAX_NAMES):
        yield start == 0, names[start : start + MAX_NAMES], ()


def _split(added: Sequence[BlobName], removed: Sequence[BlobName]) -> _Parts:
    """Messages of limited size; none where nothing changed."""
    both = list(chain(added, removed))
    for start in range(0, len(both), MAX_NAMES):
        middle = max(start, min(len(added), start + MAX_NAMES))
        yield False, tuple(both[start:middle]), tuple(both[middle : start + MAX_NAMES])
