"""Names bound to blobs, over the spaces of all attached incarnations, under leases.

Pure bookkeeping in memory: it never waits, knows no processes or files, and belongs to one
thread. What can't be evicted is exactly what a lease holds.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from baton import errors
from baton.naming import BlobName, Incarnation, LeaseId, WorkerId
from services.common.integrity import ensure
from services.common.transfer.place import (
    Checksum,
    Generation,
    Place,
    SegmentId,
    Stored,
    extent_bytes,
)
from services.transfer.allocator import ExtentAllocator
from services.transfer.leases import Clock, LeaseBook
from services.transfer.space import Space

RoomListener = Callable[[Incarnation], None]
"""Hears that an incarnation's segment may have more room than before."""
NameListener = Callable[[BlobName], None]
"""Hears that a name was bound, or unbound. Must not call the store."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A written place under its name."""

    name: BlobName
    place: Place
    checksum: Checksum
    recompute_seconds: float


@dataclass(slots=True)
class Counters:
    """What happened since the start."""

    committed_blobs: int = 0
    duplicate_commits: int = 0
    acquired_blobs: int = 0
    missed_names: int = 0
    evicted_blobs: int = 0
    corrupt_blobs: int = 0


class BlobStore:
    """Who holds what. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self.counters = Counters()
        self.leases = LeaseBook(clock)
        self.on_room: RoomListener = lambda _: None
        self.on_bound: NameListener = lambda _: None
        self.on_unbound: NameListener = lambda _: None
        self._spaces: dict[Incarnation, Space] = {}
        self._owners: dict[SegmentId, Incarnation] = {}
        self._names: dict[BlobName, Generation] = {}
        self._blobs: dict[Generation, Blob] = {}
        self._generations = count(1)

    @property
    def spaces(self) -> tuple[Space, ...]:
        """All spaces; for reading only."""
        return tuple(self._spaces.values())

    @property
    def blobs(self) -> int:
        """Blobs held, leased or cached."""
        return len(self._blobs)

    @property
    def names(self) -> Collection[BlobName]:
        """All names that are bound; for reading only."""
        return self._names.keys()

    # Spaces

    def add_space(
        self,
        incarnation: Incarnation,
        worker_id: WorkerId,
        segment_id: SegmentId,
        segment_path: str,
        size_bytes: int,
    ) -> None:
        """Makes a segment usable."""
        self._spaces[incarnation] = Space(
            incarnation, worker_id, segment_id, segment_path, ExtentAllocator(size_bytes)
        )
        self._owners[segment_id] = incarnation

    def drop_space(self, incarnation: Incarnation) -> None:
        """Forgets a segment and all that is in it. Nothing happens where there is none."""
        space = self._spaces.get(incarnation)
        if space is None:
            return
        for blob in [b for b in self._blobs.values() if b.place.segment_id == space.segment_id]:
            self._unbind(blob)
        del self._spaces[incarnation], self._owners[space.segment_id]

    def space(self, incarnation: Incarnation) -> Space:
        """The incarnation's space. Raises LayoutMismatch where it is not attached."""
        space = self._spaces.get(incarnation)
        if space is None:
            raise errors.LayoutMismatch(
                f"incarnation {incarnation!r} is not attached", reason="NOT_ATTACHED"
            )
        return space

    # Writing

    def take(self, incarnation: Incarnation, size: int) -> Place | None:
        """Reserves a place, evicting cached blobs as needed; None where leases leave no room."""
        space, extent = self.space(incarnation), extent_bytes(size)
        if not space.can_make_room(extent):
            return None
        while not space.has_room(extent):
            if not len(space.cache):
                return None
            self._unbind(self._blobs[space.cache.pop()])
            self.counters.evicted_blobs += 1
        return space.reserve(size, Generation(next(self._generations)))

    def abandon(self, incarnation: Incarnation, places: Iterable[Place]) -> None:
        """Frees reserved places; what is not reserved (any more) is left alone."""
        space = self._spaces.get(incarnation)
        if space is None:
            return
        for place in places:
            if space.is_reserved(place):
                space.unreserve(place)
        self.on_room(incarnation)

    def abandon_all(self, incarnation: Incarnation) -> None:
        """Frees all reserved places of an incarnation."""
        self.abandon(incarnation, tuple(self.space(incarnation).reserved.values()))

    def commit(
        self, incarnation: Incarnation, blobs: Sequence[Blob], lease_id: LeaseId, ttl: float
    ) -> list[bool]:
        """Binds names; for each whether its place was bound. All under the lease, if there is one.

        Raises NotFound, with nothing bound, where a place is not reserved for the incarnation.
        """
        self.expire()
        space = self.space(incarnation)
        places = [blob.place for blob in blobs]
        if len({place.generation for place in places}) != len(places) or not all(
            space.is_reserved(place) for place in places
        ):
            raise errors.NotFound("a place is not reserved", reason="NOT_RESERVED")
        bound = [self._bind(space, blob) for blob in blobs]
        self._lease([self._names[blob.name] for blob in blobs], lease_id, ttl)
        self.on_room(incarnation)
        return bound

    def _bind(self, space: Space, blob: Blob) -> bool:
        if blob.name in self._names:
            space.unreserve(blob.place)
            self.counters.duplicate_commits += 1
            return False
        generation = blob.place.generation
        del space.reserved[generation]
        self._blobs[generation] = blob
        self._names[blob.name] = generation
        space.bound_blobs += 1
        space.cache.add(generation, extent_bytes(blob.place.size), blob.recompute_seconds)
        self.counters.committed_blobs += 1
        self.on_bound(blob.name)
        return True

    # Reading

    def holds(self, name: BlobName) -> bool:
        """Whether a name is bound."""
        return name in self._names

    def acquire(
        self, names: Sequence[BlobName], lease_id: LeaseId, ttl: float
    ) -> tuple[list[tuple[BlobName, Stored]], list[BlobName]]:
        """Puts what is held under the lease; returns where it is, and the names not held.

        Under a lease that was released before, blobs are given out without protection.
        """
        self.expire()
        found = [name for name in names if name in self._names]
        missing = [name for name in names if name not in self._names]
        generations = [self._names[name] for name in found]
        self._lease(generations, lease_id, ttl)
        self.counters.acquired_blobs += len(found)
        self.counters.missed_names += len(missing)
        return [(self._blobs[g].name, self._stored(self._blobs[g])) for g in generations], missing

    def _stored(self, blob: Blob) -> Stored:
        path = self._owner(blob).segment_path
        return Stored(blob.place, path, blob.checksum)

    def discard(self, name: BlobName, place: Place) -> None:
        """Unbinds a name whose bytes are broken, unless it is bound to another place by now."""
        blob = self._blobs.get(place.generation)
        if blob is None or blob.name != name or blob.place != place:
            return
        incarnation = self._owner(blob).incarnation
        self._unbind(blob)
        self.counters.corrupt_blobs += 1
        self.on_room(incarnation)

    # Leases

    def renew(self, lease_id: LeaseId, ttl: float) -> None:
        """Prolongs a lease. Raises NotFound where there is none."""
        self.expire()
        if not self.leases.renew(lease_id, ttl):
            raise errors.NotFound(f"lease {lease_id!r} is gone", reason="LEASE_GONE")

    def release(self, lease_id: LeaseId) -> None:
        """Ends a lease; its blobs become cache."""
        self._make_cache(self.leases.release(lease_id))

    def expire(self) -> None:
        """Ends leases whose time is over."""
        self._make_cache(self.leases.expire())

    def _lease(self, blobs: Sequence[Generation], lease_id: LeaseId, ttl: float) -> None:
        if not lease_id or not blobs or not self.leases.add(lease_id, blobs, ttl):
            return
        for generation in blobs:
            cache = self._owner(self._blobs[generation]).cache
            if generation in cache:
                cache.remove(generation)

    def _make_cache(self, generations: Sequence[Generation]) -> None:
        # The end of a sequence first: without its beginning it is of no use, so of equals it
        # should be evicted first.
        incarnations: dict[Incarnation, None] = {}
        for generation in reversed(generations):
            blob = self._blobs[generation]
            space = self._owner(blob)
            space.cache.add(generation, extent_bytes(blob.place.size), blob.recompute_seconds)
            incarnations[space.incarnation] = None
        for incarnation in incarnations:
            self.on_room(incarnation)

    # All

    def _owner(self, blob: Blob) -> Space:
        return self._spaces[self._owners[blob.place.segment_id]]

    def _unbind(self, blob: Blob) -> None:
        generation, space = blob.place.generation, self._owner(blob)
        del self._names[blob.name], self._blobs[generation]
        self.leases.forget(generation)
        if generation in space.cache:
            space.cache.remove(generation)
        space.allocator.free(blob.place.offset)
        space.bound_blobs -= 1
        self.on_unbound(blob.name)

    def check_integrity(self) -> None:
        """Raises BrokenInvariant unless names, blobs, spaces and leases agree."""
        self.leases.check_integrity()
        ensure(
            self._names == {blob.name: generation for generation, blob in self._blobs.items()},
            "store: names and blobs differ",
        )
        bound: dict[SegmentId, set[int]] = {space.segment_id: set() for space in self.spaces}
        for generation, blob in self._blobs.items():
            ensure(blob.place.segment_id in bound, f"store: {blob.place} lies in no segment")
            bound[blob.place.segment_id].add(blob.place.offset)
            ensure(
                (generation in self._owner(blob).cache) != self.leases.is_leased(generation),
                f"store: {blob.place} is leased and evictable, or neither",
            )
        for space in self.spaces:
            space.check_integrity(frozenset(bound[space.segment_id]))
        cached = sum(len(space.cache) for space in self.spaces)
        ensure(
            cached + self.leases.leased_blobs == len(self._blobs),
            "store: a lease or a cache holds a blob that is gone",
        )
