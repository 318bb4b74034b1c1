import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from baton import errors
from baton.naming import BlobName, Incarnation, LeaseId, WorkerId
from services.common.integrity import BrokenInvariant
from services.common.transfer.place import Checksum, Place, SegmentId
from services.transfer.store import Blob, BlobStore
from tests.support.clock import FakeClock

ONE, TWO = Incarnation("one"), Incarnation("two")
NO_LEASE, LEASE = LeaseId(""), LeaseId("lease")
PAYLOAD = 64  # 128 bytes with its header


def name(number: int) -> BlobName:
    return BlobName(number.to_bytes(16, "big"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> BlobStore:
    return make_store(clock)


def make_store(clock: FakeClock, places: int = 4) -> BlobStore:
    store = BlobStore(clock)
    for incarnation in (ONE, TWO):
        segment = SegmentId(f"segment-{incarnation}")
        store.add_space(incarnation, WorkerId("w"), segment, f"/{segment}", 128 * places)
    return store


def put(
    store: BlobStore, number: int, lease: LeaseId = NO_LEASE, by: Incarnation = ONE, cost: float = 1
) -> bool:
    place = store.take(by, PAYLOAD)
    assert place is not None
    (bound,) = store.commit(by, [blob(number, place, cost)], lease, 5)
    store.check_integrity()
    return bound


def blob(number: int, place: Place, cost: float = 1) -> Blob:
    return Blob(name(number), place, Checksum(number), cost)


def held(store: BlobStore) -> set[int]:
    return {number for number in range(100) if store.holds(name(number))}


def test_a_name_binds_at_commit(store: BlobStore) -> None:
    place = store.take(ONE, PAYLOAD)
    assert place is not None
    assert not store.holds(name(1))
    assert store.commit(ONE, [blob(1, place)], NO_LEASE, 0) == [True]
    (found,), missing = store.acquire([name(1), name(2)], LEASE, 5)
    assert found[1].place == place
    assert found[1].segment_path == "/segment-one"
    assert found[1].checksum == 1
    assert missing == [name(2)]
    counters = store.counters
    assert (counters.committed_blobs, counters.acquired_blobs, counters.missed_names) == (1, 1, 1)


def test_the_second_commit_of_a_name_frees_its_place(store: BlobStore) -> None:
    assert put(store, 1)
    used = store.space(TWO).allocator.used_bytes
    assert not put(store, 1, by=TWO)
    assert store.space(TWO).allocator.used_bytes == used
    assert store.counters.duplicate_commits == 1


def test_a_duplicate_commit_puts_the_first_blob_under_the_lease(store: BlobStore) -> None:
    put(store, 1)
    put(store, 1, LEASE, by=TWO)
    for number in range(2, 10):
        put(store, number)
    assert 1 in held(store)


def test_one_commit_may_name_a_blob_twice(store: BlobStore) -> None:
    places = [store.take(ONE, PAYLOAD), store.take(ONE, PAYLOAD)]
    blobs = [blob(1, place) for place in places if place is not None]
    assert store.commit(ONE, blobs, LEASE, 5) == [True, False]
    store.check_integrity()


@pytest.mark.parametrize(
    "change", ["other incarnation", "abandoned", "committed", "twice", "forged"]
)
def test_only_reserved_places_can_be_committed(store: BlobStore, change: str) -> None:
    good, place = store.take(ONE, PAYLOAD), store.take(ONE, PAYLOAD)
    assert good is not None
    assert place is not None
    incarnation, blobs = ONE, [blob(1, good), blob(2, place)]
    if change == "other incarnation":
        incarnation = TWO
    elif change == "abandoned":
        store.abandon(ONE, [place])
    elif change == "committed":
        store.commit(ONE, [blob(3, place)], NO_LEASE, 0)
    elif change == "twice":
        blobs[1] = blob(2, good)
    else:
        blobs[1] = blob(2, Place(place.segment_id, 0, 8, place.generation))
    with pytest.raises(errors.NotFound):
        store.commit(incarnation, blobs, LEASE, 5)
    assert not store.holds(name(1))
    store.check_integrity()


def test_cached_blobs_make_room_and_leased_ones_never(store: BlobStore) -> None:
    for number in range(4):
        put(store, number, LEASE if number < 2 else NO_LEASE)
    put(store, 4)
    put(store, 5)
    assert held(store) == {0, 1, 4, 5}
    for _ in range(2):
        assert store.take(ONE, PAYLOAD) is not None
    assert store.take(ONE, PAYLOAD) is None
    assert held(store) == {0, 1}
    assert store.counters.evicted_blobs == 4


def test_eviction_stays_in_the_segment(store: BlobStore) -> None:
    put(store, 50, by=TWO)
    for number in range(8):
        put(store, number)
    assert 50 in held(store)


def test_nothing_is_evicted_for_what_can_never_fit(store: BlobStore) -> None:
    put(store, 1, LEASE)
    put(store, 2)
    assert store.take(ONE, 128 * 4 - 64) is None
    assert held(store) == {1, 2}


def test_a_large_blob_makes_room_by_evicting_several(store: BlobStore) -> None:
    for number in range(4):
        put(store, number)
    place = store.take(ONE, 128 * 3 - 64)
    assert place is not None
    store.check_integrity()
    assert store.counters.evicted_blobs == 3


def test_the_end_of_a_sequence_is_evicted_before_its_beginning(store: BlobStore) -> None:
    for number in range(4):
        put(store, number, LEASE)
    store.release(LEASE)
    put(store, 10)
    put(store, 11)
    assert held(store) == {0, 1, 10, 11}


def test_what_is_dear_to_compute_stays_longer(store: BlobStore) -> None:
    for number in range(4):
        put(store, number, cost=10 if number == 0 else 1)
    for number in range(10, 13):
        put(store, number)
    assert 0 in held(store)


def test_an_expired_lease_protects_no_longer(store: BlobStore, clock: FakeClock) -> None:
    for number in range(4):
        put(store, number, LEASE)
    assert store.take(ONE, PAYLOAD) is None
    clock.advance(5)
    store.expire()
    store.check_integrity()
    assert store.take(ONE, PAYLOAD) is not None
    with pytest.raises(errors.NotFound):
        store.renew(LEASE, 5)


def test_acquiring_under_an_ended_lease_gives_the_blob_unprotected(store: BlobStore) -> None:
    put(store, 1, LEASE)
    store.release(LEASE)
    found, _ = store.acquire([name(1)], LEASE, 5)
    assert len(found) == 1
    assert len(store.leases) == 0
    store.check_integrity()


def test_discard_unbinds_only_the_place_that_failed(store: BlobStore) -> None:
    put(store, 1, LEASE)
    ((_, stored),), _ = store.acquire([name(1)], LEASE, 5)
    store.discard(name(2), stored.place)
    assert held(store) == {1}
    store.discard(name(1), stored.place)
    assert held(store) == set()
    store.check_integrity()
    put(store, 1, by=TWO)
    store.discard(name(1), stored.place)
    assert held(store) == {1}
    assert store.counters.corrupt_blobs == 1


def test_a_dropped_space_takes_its_names_and_reservations_along(store: BlobStore) -> None:
    put(store, 1, LEASE)
    put(store, 2)
    put(store, 3, LEASE, by=TWO)
    store.take(ONE, PAYLOAD)
    store.drop_space(ONE)
    store.check_integrity()
    assert held(store) == {3}
    assert store.leases.leased_blobs == 1
    with pytest.raises(errors.LayoutMismatch):
        store.take(ONE, PAYLOAD)
    store.abandon(ONE, [])
    store.drop_space(ONE)


def test_abandon_all_frees_reservations_only(store: BlobStore) -> None:
    put(store, 1)
    store.take(ONE, PAYLOAD)
    store.take(ONE, PAYLOAD)
    store.abandon_all(ONE)
    store.check_integrity()
    assert store.space(ONE).allocator.used_bytes == 128


@pytest.mark.parametrize("act", ["abandon", "release", "expire", "discard", "duplicate", "commit"])
def test_room_is_announced(store: BlobStore, clock: FakeClock, act: str) -> None:
    put(store, 1, LEASE)
    place = store.take(ONE, PAYLOAD)
    assert place is not None
    heard: list[Incarnation] = []
    store.on_room = heard.append
    if act == "abandon":
        store.abandon(ONE, [place])
    elif act == "release":
        store.release(LEASE)
    elif act == "expire":
        clock.advance(5)
        store.expire()
    elif act == "discard":
        ((_, stored),), _ = store.acquire([name(1)], NO_LEASE, 5)
        store.discard(name(1), stored.place)
    elif act == "duplicate":
        store.commit(ONE, [blob(1, place)], NO_LEASE, 5)
    else:
        store.commit(ONE, [blob(2, place)], NO_LEASE, 5)
    assert heard == [ONE]


def test_names_that_are_bound_and_unbound_are_told(store: BlobStore) -> None:
    told: list[tuple[bool, int]] = []
    store.on_bound = lambda bound: told.append((True, int.from_bytes(bound, "big")))
    store.on_unbound = lambda bound: told.append((False, int.from_bytes(bound, "big")))
    put(store, 1)
    put(store, 1, by=TWO)  # changes nothing
    put(store, 2, by=TWO)
    for number in range(3, 7):  # the last one evicts the first
        put(store, number)
    (found,), _ = store.acquire([name(2)], NO_LEASE, 0)
    store.discard(name(2), found[1].place)
    store.drop_space(ONE)
    came = [(True, number) for number in range(1, 6)]
    went = [(False, number) for number in range(3, 7)]
    assert told == [*came, (False, 1), (True, 6), (False, 2), *went]
    assert not store.names


def test_leased_blobs_are_counted_by_space(store: BlobStore, clock: FakeClock) -> None:
    put(store, 1, LEASE)
    put(store, 2)
    put(store, 3, LEASE, by=TWO)
    store.acquire([name(1), name(2)], LeaseId("other"), 9)
    assert [space.leased_blobs for space in store.spaces] == [2, 1]
    clock.advance(6)
    store.expire()
    assert [space.leased_blobs for space in store.spaces] == [2, 0]
    store.release(LeaseId("other"))
    assert [space.leased_blobs for space in store.spaces] == [0, 0]


def test_check_integrity_notices_a_name_without_blob(store: BlobStore) -> None:
    put(store, 1)
    del store._names[name(1)]
    with pytest.raises(BrokenInvariant):
        store.check_integrity()


NUMBERS = st.integers(0, 7)
LEASES = st.sampled_from([NO_LEASE, LeaseId("a"), LeaseId("b"), LeaseId("c")])
INCARNATIONS = st.sampled_from([ONE, TWO])


class StoreMachine(RuleBasedStateMachine):
    """Any order of calls leaves the store sound, and leased blobs where they were."""

    @initialize()
    def begin(self) -> None:
        self.clock = FakeClock()
        self.store = make_store(self.clock, places=6)
        self.reserved: dict[Incarnation, list[Place]] = {ONE: [], TWO: []}
        self.round = 0

    @rule(by=INCARNATIONS, size=st.integers(1, 300))
    def take(self, by: Incarnation, size: int) -> None:
        leased = self.leased()
        place = self.store.take(by, size)
        assert leased <= held(self.store)
        if place is not None:
            self.reserved[by].append(place)

    @rule(by=INCARNATIONS, number=NUMBERS, lease=LEASES, cost=st.floats(0, 10))
    def commit(self, by: Incarnation, number: int, lease: LeaseId, cost: float) -> None:
        if self.reserved[by]:
            place = self.reserved[by].pop(0)
            was_held = self.store.holds(name(number))
            assert self.store.commit(by, [blob(number, place, cost)], lease, 5) == [not was_held]
            assert self.store.holds(name(number))

    @rule(by=INCARNATIONS)
    def abandon(self, by: Incarnation) -> None:
        self.store.abandon(by, self.reserved[by][:2])
        del self.reserved[by][:2]

    @rule(numbers=st.lists(NUMBERS, unique=True), lease=LEASES)
    def acquire(self, numbers: list[int], lease: LeaseId) -> None:
        names = [name(number) for number in numbers]
        found, missing = self.store.acquire(names, lease, 5)
        assert sorted([key for key, _ in found] + missing) == sorted(names)

    @rule(lease=LEASES)
    def release(self, lease: LeaseId) -> None:
        self.store.release(lease)

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.store.expire()

    @rule(number=NUMBERS)
    def discard(self, number: int) -> None:
        found, _ = self.store.acquire([name(number)], NO_LEASE, 0)
        for key, stored in found:
            self.store.discard(key, stored.place)
            assert not self.store.holds(key)

    @rule(by=INCARNATIONS)
    def die_and_come_back(self, by: Incarnation) -> None:
        self.store.drop_space(by)
        self.reserved[by] = []
        self.round += 1
        segment = SegmentId(f"segment-{by}-{self.round}")
        self.store.add_space(by, WorkerId("w"), segment, f"/{segment}", 128 * 6)

    def leased(self) -> set[int]:
        return {
            number
            for number in held(self.store)
            if self.store.leases.is_leased(self.store._names[name(number)])
        }

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "store"):
            self.store.check_integrity()


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStoreMachine = StoreMachine.TestCase
