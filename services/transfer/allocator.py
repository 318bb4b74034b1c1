"""Extents of one segment: which byte ranges are taken, which are free.

Best fit with coalescing. Offsets and sizes are multiples of the alignment. Knows no blobs and
never touches the bytes.
"""

from bisect import bisect_left, insort

from services.common.integrity import ensure
from services.common.transfer.place import ALIGNMENT


class ExtentAllocator:
    """Hands out disjoint ranges of `size_bytes`. Not thread-safe."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes // ALIGNMENT * ALIGNMENT
        self.free_bytes = 0
        self._taken: dict[int, int] = {}  # offset -> size
        self._free: dict[int, int] = {}  # offset -> size
        self._free_ends: dict[int, int] = {}  # end -> offset
        self._free_by_size: list[tuple[int, int]] = []  # (size, offset), ascending
        if self.size_bytes:
            self._add_free(0, self.size_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes in taken extents."""
        return self.size_bytes - self.free_bytes

    @property
    def largest_free(self) -> int:
        """Size of the largest extent that `allocate` can give now."""
        return self._free_by_size[-1][0] if self._free_by_size else 0

    def allocate(self, size: int) -> int:
        """Takes `size` bytes (rounded up to the alignment) and returns their offset.

        Raises MemoryError where no free extent is as large: see `largest_free`.
        """
        size = _aligned(size)
        index = bisect_left(self._free_by_size, (size, 0))
        if index == len(self._free_by_size):
            raise MemoryError(f"no free extent of {size} bytes")
        free_size, offset = self._free_by_size[index]
        self._remove_free(offset)
        if free_size > size:
            self._add_free(offset + size, free_size - size)
        self._taken[offset] = size
        return offset

    def free(self, offset: int) -> None:
        """Gives a taken extent back. Raises KeyError where none begins at `offset`."""
        start, size = offset, self._taken.pop(offset)
        before = self._free_ends.get(start)
        if before is not None:
            size += self._remove_free(before)
            start = before
        if start + size in self._free:
            size += self._remove_free(start + size)
        self._add_free(start, size)

    def _add_free(self, offset: int, size: int) -> None:
        self._free[offset] = size
        self._free_ends[offset + size] = offset
        insort(self._free_by_size, (size, offset))
        self.free_bytes += size

    def _remove_free(self, offset: int) -> int:
        size = self._free.pop(offset)
        del self._free_ends[offset + size]
        del self._free_by_size[bisect_left(self._free_by_size, (size, offset))]
        self.free_bytes -= size
        return size

    def taken_offsets(self) -> frozenset[int]:
        """Where taken extents begin."""
        return frozenset(self._taken)

    def check_integrity(self) -> None:
        """Raises BrokenInvariant unless the extents tile the segment and the indices agree."""
        extents = sorted(
            [(offset, size, False) for offset, size in self._taken.items()]
            + [(offset, size, True) for offset, size in self._free.items()]
        )
        end, free_before = 0, False
        for offset, size, is_free in extents:
            ensure(offset == end, f"allocator: gap or overlap at {offset}, expected {end}")
            ensure(size > 0 and size % ALIGNMENT == 0, f"allocator: odd size {size} at {offset}")
            ensure(not (is_free and free_before), f"allocator: uncoalesced extent at {offset}")
            end, free_before = offset + size, is_free
        ensure(end == self.size_bytes, f"allocator: extents end at {end}")
        by_size = sorted((size, offset) for offset, size in self._free.items())
        ensure(by_size == self._free_by_size, "allocator: size index differs from free extents")
        ends = {offset + size: offset for offset, size in self._free.items()}
        ensure(ends == self._free_ends, "allocator: end index differs from free extents")
        ensure(sum(self._free.values()) == self.free_bytes, "allocator: wrong count of free bytes")


def _aligned(size: int) -> int:
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT
