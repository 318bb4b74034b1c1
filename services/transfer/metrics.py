"""What the transfer service's metrics tell: read from the store, as its status is."""

from collections import Counter

from services.common.telemetry.metric import Reading, Source, counter, gauge
from services.transfer.peers.pulls import Pulls
from services.transfer.room import RoomQueue
from services.transfer.store import BlobStore

SEGMENT = gauge(
    "baton_transfer_segment_bytes", "Size of a worker's segment.", "worker", stands=True
)
USED = gauge(
    "baton_transfer_used_bytes",
    "Bytes of a worker's segment that blobs take, cached ones too.",
    "worker",
    stands=True,
)
BLOBS = gauge("baton_transfer_blobs", "Blobs held, leased or cached.", stands=True)
LEASED = gauge("baton_transfer_leased_blobs", "Blobs under a lease.")
LEASES = gauge("baton_transfer_leases", "Leases in force.")
RESERVATIONS = gauge("baton_transfer_reservations", "Places reserved and not committed.")
COMMITTED = counter("baton_transfer_committed_blobs_total", "Blobs committed.")
DUPLICATE = counter("baton_transfer_duplicate_commits_total", "Commits whose name was taken.")
ACQUIRED = counter("baton_transfer_acquired_blobs_total", "Blobs given out to readers.")
MISSED = counter("baton_transfer_missed_names_total", "Names asked for and not held.")
EVICTED = counter("baton_transfer_evicted_blobs_total", "Blobs evicted to make room.")
CORRUPT = counter(
    "baton_transfer_corrupt_blobs_total", "Blobs discarded because of a wrong checksum."
)
EXPIRED = counter(
    "baton_transfer_expired_leases_total", "Leases that expired instead of being released."
)
PEER_BLOBS = counter("baton_transfer_peer_blobs_total", "Blobs read from other hosts.")
PEER_BYTES = counter("baton_transfer_peer_bytes_total", "Bytes read from other hosts.")
PEER_FAILURES = counter(
    "baton_transfer_peer_failures_total", "Blobs that could not be read from another host."
)
PEER_SECONDS = counter(
    "baton_transfer_peer_wait_seconds_total", "Time that readers waited for other hosts' blobs."
)
ROOM_SECONDS = counter(
    "baton_transfer_room_wait_seconds_total", "Time that writers waited for room in a segment."
)
METRICS = (
    *(SEGMENT, USED, BLOBS, LEASED, LEASES, RESERVATIONS, COMMITTED, DUPLICATE, ACQUIRED, MISSED),
    *(EVICTED, CORRUPT, EXPIRED, PEER_BLOBS, PEER_BYTES, PEER_FAILURES, PEER_SECONDS, ROOM_SECONDS),
)


class TransferMetrics:
    """Reads what one transfer service holds and has done."""

    def __init__(self, store: BlobStore, pulls: Pulls, room: RoomQueue) -> None:
        self._store = store
        self._pulls = pulls
        self._room = room

    def source(self) -> Source:
        """Reads the metrics of this module."""
        return Source("transfer", self._read, METRICS)

    async def _read(self) -> list[Reading]:
        return [*self._holdings(), *self._counts()]

    def _holdings(self) -> list[Reading]:
        store = self._store
        store.expire()
        sizes, used = Counter[str](), Counter[str]()
        for space in store.spaces:  # a worker that restarts has two for a moment
            sizes[space.worker_id] += space.allocator.size_bytes
            used[space.worker_id] += space.allocator.used_bytes
        return [
            *(SEGMENT.at(size, worker) for worker, size in sizes.items()),
            *(USED.at(size, worker) for worker, size in used.items()),
            BLOBS.at(store.blobs),
            LEASED.at(store.leases.leased_blobs),
            LEASES.at(len(store.leases)),
            RESERVATIONS.at(sum(len(space.reserved) for space in store.spaces)),
        ]

    def _counts(self) -> list[Reading]:
        counters, read = self._store.counters, self._pulls.counters
        return [
            COMMITTED.at(counters.committed_blobs),
            DUPLICATE.at(counters.duplicate_commits),
            ACQUIRED.at(counters.acquired_blobs),
            MISSED.at(counters.missed_names),
            EVICTED.at(counters.evicted_blobs),
            CORRUPT.at(counters.corrupt_blobs),
            EXPIRED.at(self._store.leases.expired),
            PEER_BLOBS.at(read.blobs),
            PEER_BYTES.at(read.bytes),
            PEER_FAILURES.at(read.failures),
            PEER_SECONDS.at(read.waited_s),
            ROOM_SECONDS.at(self._room.waited_s),
        ]
