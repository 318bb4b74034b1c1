"""The memory of one worker incarnation: its extents, its reservations, its evictable blobs."""

from dataclasses import dataclass, field

from baton.naming import Incarnation, WorkerId
from services.common.integrity import ensure
from services.common.transfer.place import Generation, Place, SegmentId, extent_bytes
from services.transfer.allocator import ExtentAllocator
from services.transfer.eviction import GreedyDual


@dataclass(slots=True)
class Space:
    """One segment's bookkeeping. Every extent belongs to a reservation or to a bound blob."""

    incarnation: Incarnation
    worker_id: WorkerId
    segment_id: SegmentId
    segment_path: str
    allocator: ExtentAllocator
    cache: GreedyDual = field(default_factory=GreedyDual)
    reserved: dict[Generation, Place] = field(default_factory=dict)
    bound_blobs: int = 0
    """Blobs in it, leased or cached."""

    @property
    def leased_blobs(self) -> int:
        """Blobs in it that are under a lease."""
        return self.bound_blobs - len(self.cache)

    def can_make_room(self, extent: int) -> bool:
        """Whether evicting cached blobs could make room for `extent` bytes, if they lie well."""
        return self.allocator.free_bytes + self.cache.evictable_bytes >= extent

    def has_room(self, extent: int) -> bool:
        """Whether `reserve` can give `extent` bytes now."""
        return self.allocator.largest_free >= extent

    def reserve(self, size: int, generation: Generation) -> Place:
        """Reserves a place for a payload of `size` bytes; see `has_room`."""
        offset = self.allocator.allocate(extent_bytes(size))
        place = Place(self.segment_id, offset, size, generation)
        self.reserved[generation] = place
        return place

    def is_reserved(self, place: Place) -> bool:
        """Whether `place` is a reservation of this space."""
        return self.reserved.get(place.generation) == place

    def unreserve(self, place: Place) -> None:
        """Frees a reserved place."""
        del self.reserved[place.generation]
        self.allocator.free(place.offset)

    def check_integrity(self, bound: frozenset[int]) -> None:
        """Raises BrokenInvariant unless extents are just the reservations and `bound` offsets."""
        self.allocator.check_integrity()
        self.cache.check_integrity()
        ensure(self.bound_blobs == len(bound), f"{self.segment_id}: wrong count of blobs")
        reserved = frozenset(place.offset for place in self.reserved.values())
        ensure(not (reserved & bound), f"{self.segment_id}: a place is reserved and bound")
        ensure(
            self.allocator.taken_offsets() == reserved | bound,
            f"{self.segment_id}: an extent is taken without an owner, or owned and free",
        )
