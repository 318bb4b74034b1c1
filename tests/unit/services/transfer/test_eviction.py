import pytest

from services.common.integrity import BrokenInvariant
from services.common.transfer.place import Generation
from services.transfer.eviction import GreedyDual


def cache(*blobs: tuple[int, int, float]) -> GreedyDual:
    evictor = GreedyDual()
    for generation, size, cost in blobs:
        evictor.add(Generation(generation), size, cost)
    return evictor


def drain(evictor: GreedyDual) -> list[int]:
    victims: list[int] = []
    while len(evictor):
        victims.append(evictor.pop())
        evictor.check_integrity()
    return victims


def test_the_cheapest_per_byte_goes_first() -> None:
    assert drain(cache((1, 100, 5.0), (2, 1000, 5.0), (3, 10, 5.0))) == [2, 1, 3]


def test_of_equals_the_oldest_goes_first() -> None:
    assert drain(cache((3, 10, 1.0), (1, 10, 1.0), (2, 10, 1.0))) == [3, 1, 2]


def test_a_dear_blob_ages_until_it_goes() -> None:
    evictor = cache((0, 1, 3.0))
    victims = []
    for generation in range(1, 10):
        evictor.add(Generation(generation), 1, 1.0)
        victims.append(evictor.pop())
    assert 0 in victims
    assert victims.index(0) >= 2


def test_adding_again_counts_as_a_use() -> None:
    evictor = cache((1, 1, 1.0), (2, 1, 1.0), (3, 1, 1.0))
    evictor.remove(Generation(1))
    evictor.add(Generation(1), 1, 1.0)
    assert drain(evictor) == [2, 3, 1]


def test_bytes_and_membership_follow() -> None:
    evictor = cache((1, 10, 1.0), (2, 20, 9.0))
    assert evictor.evictable_bytes == 30
    evictor.remove(Generation(1))
    assert (evictor.evictable_bytes, len(evictor)) == (20, 1)
    assert Generation(1) not in evictor
    assert evictor.pop() == 2
    with pytest.raises(IndexError):
        evictor.pop()
    with pytest.raises(KeyError):
        evictor.remove(Generation(2))


def test_removed_entries_do_not_pile_up() -> None:
    evictor = cache((0, 1, 1.0))
    for _ in range(5_000):
        evictor.add(Generation(1), 1, 1.0)
        evictor.remove(Generation(1))
    assert len(evictor._heap) < 100
    evictor.check_integrity()


def test_check_integrity_notices_a_wrong_byte_count() -> None:
    evictor = cache((1, 10, 1.0))
    evictor.evictable_bytes += 1
    with pytest.raises(BrokenInvariant):
        evictor.check_integrity()
