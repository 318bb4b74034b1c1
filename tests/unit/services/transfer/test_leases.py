from collections.abc import Sequence

import pytest

from baton.naming import LeaseId
from services.common.integrity import BrokenInvariant
from services.common.transfer.place import Generation
from services.transfer.leases import LeaseBook
from tests.support.clock import FakeClock

A, B = LeaseId("a"), LeaseId("b")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def book(clock: FakeClock) -> LeaseBook:
    return LeaseBook(clock)


def blobs(*numbers: int) -> Sequence[Generation]:
    return [Generation(number) for number in numbers]


def test_a_blob_is_free_when_its_last_lease_ends(book: LeaseBook) -> None:
    book.add(A, blobs(1, 2), 5)
    book.add(B, blobs(2, 3), 5)
    assert book.release(A) == [1]
    assert book.is_leased(Generation(2))
    assert book.release(B) == [2, 3]
    assert (len(book), book.leased_blobs) == (0, 0)
    book.check_integrity()


def test_the_same_blob_counts_once_in_a_lease(book: LeaseBook) -> None:
    book.add(A, blobs(1, 1), 5)
    book.add(A, blobs(1), 5)
    assert book.release(A) == [1]
    book.check_integrity()


def test_a_lease_expires_unless_it_is_used(book: LeaseBook, clock: FakeClock) -> None:
    book.add(A, blobs(1), 5)
    book.add(B, blobs(2), 5)
    clock.advance(4)
    assert book.renew(A, 5)
    clock.advance(1)
    assert book.expire() == [2]
    clock.advance(3.9)
    assert book.expire() == []
    clock.advance(0.1)
    assert book.expire() == [1]
    assert (book.expired, len(book)) == (2, 0)
    book.check_integrity()


def test_a_shorter_time_does_not_shorten_a_lease(book: LeaseBook, clock: FakeClock) -> None:
    book.add(A, blobs(1), 10)
    book.add(A, blobs(2), 1)
    clock.advance(9)
    assert book.expire() == []


def test_renewing_what_is_gone_says_so(book: LeaseBook, clock: FakeClock) -> None:
    assert not book.renew(A, 5)
    book.add(A, blobs(1), 1)
    clock.advance(1)
    book.expire()
    assert not book.renew(A, 5)


def test_a_released_lease_stays_ended_for_late_messages(book: LeaseBook, clock: FakeClock) -> None:
    assert book.release(A) == []  # the release may even come first
    assert not book.add(A, blobs(1), 5)
    assert not book.is_leased(Generation(1))
    clock.advance(120)
    book.expire()
    assert book.add(A, blobs(1), 5)  # its memory is not for ever
    book.check_integrity()


def test_an_expired_lease_may_begin_again(book: LeaseBook, clock: FakeClock) -> None:
    book.add(A, blobs(1), 1)
    clock.advance(2)
    book.expire()
    assert book.add(A, blobs(1), 1)
    assert book.is_leased(Generation(1))


def test_a_lease_of_no_time_is_over_at_once(book: LeaseBook) -> None:
    book.add(A, blobs(1), 0)
    assert book.expire() == [1]


def test_a_forgotten_blob_leaves_all_leases(book: LeaseBook) -> None:
    book.add(A, blobs(1, 2), 5)
    book.add(B, blobs(1), 5)
    book.forget(Generation(1))
    book.check_integrity()
    assert book.release(B) == []
    assert book.release(A) == [2]


def test_check_integrity_notices_a_wrong_holder_count(book: LeaseBook) -> None:
    book.add(A, blobs(1), 5)
    book._holders[Generation(1)] += 1
    with pytest.raises(BrokenInvariant):
        book.check_integrity()
