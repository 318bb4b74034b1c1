"""Which workers have a prompt's beginning cached, as far as the last events told.

An approximate index of KV block names by who holds them: engines tell of their own blocks,
transfer services of what all workers of a host can fetch. A name here is a hint: acting on one
that is gone costs time, never correctness. Knows no streams and no scheduling.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from baton.errors import InternalError
from baton.naming import (
    BlobName,
    Incarnation,
    WorkerId,
    blob_name,
    chain_next,
    chain_root,
)
from baton.policy.fleet import Worker

MAX_NAMES = 500_000
"""Names kept, over all holders: some 300 bytes each. What comes beyond them is not known."""
INLINE_TOKENS = 2048
"""Longer prompts are looked up on another thread than the event loop's."""


@dataclass(frozen=True, slots=True)
class EngineSource:
    """A worker's own blocks."""

    worker_id: WorkerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class HostSource:
    """What a host's transfer service (host:port) holds."""

    address: str


Source = EngineSource | HostSource


def sources_of(worker: Worker) -> tuple[Source, Source]:
    """Who may hold blocks for `worker`."""
    return (
        EngineSource(worker.worker_id, worker.incarnation),
        HostSource(worker.transfer_address),
    )


class CacheIndex:
    """Names and their holders. Belongs to one event loop; look-ups may run on other threads."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._holders: dict[BlobName, frozenset[Source]] = {}
        self._names: dict[Source, set[BlobName]] = {}
        self._held = 0
        self._sets: dict[frozenset[Source], frozenset[Source]] = {}
        """Equal sets are kept once."""
        self._workers: dict[Source, tuple[WorkerId, ...]] = {}
        self._layouts: dict[str, Worker] = {}
        self.unknown = 0
        """Names that there was no room for."""

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def sources(self) -> frozenset[Source]:
        """Holders that told of something."""
        return frozenset(self._names)

    def set_workers(self, workers: Iterable[Worker]) -> None:
        """Who may be given work now, and so is answered for."""
        by_source: dict[Source, list[WorkerId]] = {}
        layouts: dict[str, Worker] = {}
        for worker in workers:
            layouts.setdefault(worker.layout_fingerprint, worker)
            for source in sources_of(worker):
                by_source.setdefault(source, []).append(worker.worker_id)
        self._workers = {source: tuple(found) for source, found in by_source.items()}
        self._layouts = layouts

    def add(self, source: Source, names: Iterable[BlobName]) -> None:
        """`source` holds these too."""
        mine = self._names.setdefault(source, set())
        for name in names:
            if name in mine:
                continue
            if self._held >= self._max_names:
                self.unknown += 1
                continue
            mine.add(name)
            self._held += 1
            self._holders[name] = self._one(self._holders.get(name, frozenset()) | {source})

    def remove(self, source: Source, names: Iterable[BlobName]) -> None:
        """`source` holds these no more."""
        mine = self._names.get(source, set())
        for name in names:
            if name in mine:
                mine.remove(name)
                self._forget(source, name)

    def drop(self, source: Source) -> None:
        """Nothing is known of `source` any more."""
        for name in self._names.pop(source, ()):
            self._forget(source, name)

    async def cached(self, tokens: Sequence[int], salt: bytes) -> Mapping[WorkerId, int]:
        """How many of the first `tokens` workers would not have to compute; none are left out
        that have any."""
        if len(tokens) <= INLINE_TOKENS:
            return self.look_up(tokens, salt)
        return await asyncio.to_thread(self.look_up, tokens, salt)

    def look_up(self, tokens: Sequence[int], salt: bytes) -> dict[WorkerId, int]:
        """As `cached`, at once."""
        found: dict[WorkerId, int] = {}
        workers = self._workers
        for layout, example in self._layouts.items():
            if not example.block_tokens:
                continue
            names = _names(tokens, salt, layout, example)
            for source, blocks in self._runs(names).items():
                for worker_id in workers.get(source, ()):
                    known = found.get(worker_id, 0)
                    found[worker_id] = max(known, blocks * example.block_tokens)
        return found

    def check_integrity(self) -> None:
        """Raises InternalError where names and holders contradict each other."""
        held = {(source, name) for source, names in self._names.items() for name in names}
        holders = {(source, name) for name, having in self._holders.items() for source in having}
        if held != holders or self._held != len(held) or not all(self._holders.values()):
            raise InternalError("cache index: names and holders differ")

    def _runs(self, names: Iterator[BlobName]) -> dict[Source, int]:
        """How many of the names, from the first on, each source holds without a gap."""
        runs: dict[Source, int] = {}
        alive: frozenset[Source] | None = None
        count = 0
        for name in names:
            holders = self._holders.get(name, frozenset())
            still = holders if alive is None else alive & holders
            for source in (alive or frozenset()) - still:
                runs[source] = count
            alive = still
            if not alive:
                return runs
            count += 1
        return runs | dict.fromkeys(alive or (), count)

    def _forget(self, source: Source, name: BlobName) -> None:
        self._held -= 1
        left = self._holders[name] - {source}
        if left:
            self._holders[name] = self._one(left)
        else:
            del self._holders[name]

    def _one(self, holders: frozenset[Source]) -> frozenset[Source]:
        if len(self._sets) > 2 * len(self._names) + 1024:
            self._sets.clear()
        return self._sets.setdefault(holders, holders)


def _names(tokens: Sequence[int], salt: bytes, layout: str, worker: Worker) -> Iterator[BlobName]:
    """Names of the full blocks that may serve: at least one token is left to compute."""
    size, chain = worker.block_tokens, chain_root(layout, salt)
    for start in range(0, len(tokens) - size, size):
        chain = chain_next(chain, tokens[start : start + size])
        yield blob_name(chain, worker.index_group)
