import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from services.common.integrity import BrokenInvariant
from services.transfer.allocator import ExtentAllocator

SIZE = 64 * 66


def test_a_fresh_allocator_is_one_free_extent() -> None:
    allocator = ExtentAllocator(SIZE + 63)
    assert (allocator.size_bytes, allocator.free_bytes, allocator.largest_free) == (SIZE,) * 3
    assert allocator.allocate(SIZE) == 0
    assert (allocator.used_bytes, allocator.largest_free) == (SIZE, 0)
    allocator.check_integrity()


def test_extents_are_aligned_and_disjoint() -> None:
    allocator = ExtentAllocator(SIZE)
    assert [allocator.allocate(size) for size in (1, 64, 65, 10)] == [0, 64, 128, 256]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0)])
def test_freed_neighbours_coalesce(order: tuple[int, ...]) -> None:
    allocator = ExtentAllocator(SIZE)
    offsets = [allocator.allocate(SIZE // 3) for _ in range(3)]
    for index in order:
        allocator.free(offsets[index])
        allocator.check_integrity()
    assert allocator.largest_free == SIZE


def test_the_best_fit_is_taken() -> None:
    allocator = ExtentAllocator(SIZE)
    first, _, third, _ = (allocator.allocate(size) for size in (256, 64, 128, 64))
    allocator.free(first)
    allocator.free(third)
    assert allocator.allocate(128) == third


def test_no_room_and_unknown_offsets_are_errors() -> None:
    allocator = ExtentAllocator(SIZE)
    offset = allocator.allocate(SIZE - 64)
    with pytest.raises(MemoryError):
        allocator.allocate(65)
    with pytest.raises(KeyError):
        allocator.free(offset + 64)
    allocator.check_integrity()


def test_check_integrity_notices_a_lost_extent() -> None:
    allocator = ExtentAllocator(SIZE)
    offset = allocator.allocate(64)
    del allocator._taken[offset]
    with pytest.raises(BrokenInvariant):
        allocator.check_integrity()


class AllocatorMachine(RuleBasedStateMachine):
    extents = Bundle("extents")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = ExtentAllocator(SIZE)
        self.model: dict[int, int] = {}  # offset -> size

    @rule(target=extents, size=st.integers(1, SIZE // 4))
    def allocate(self, size: int) -> int | None:
        aligned = -(-size // 64) * 64
        if self.allocator.largest_free < aligned:
            with pytest.raises(MemoryError):
                self.allocator.allocate(size)
            return None
        offset = self.allocator.allocate(size)
        assert all(
            offset + aligned <= start or start + length <= offset
            for start, length in self.model.items()
        )
        self.model[offset] = aligned
        return offset

    @rule(offset=consumes(extents))
    def free(self, offset: int | None) -> None:
        if offset is not None:
            self.allocator.free(offset)
            del self.model[offset]

    @invariant()
    def sound(self) -> None:
        self.allocator.check_integrity()
        assert self.allocator.used_bytes == sum(self.model.values())
        assert self.allocator.taken_offsets() == self.model.keys()


AllocatorMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestAllocatorMachine = AllocatorMachine.TestCase
