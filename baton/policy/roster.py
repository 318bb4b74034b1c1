"""The workers of one moment, in the order in which they have room.

Kept so that a decision looks at a few workers, however many there are: taking a snapshot in is
O(n log n), noting a claim is a search in a sorted list, and a decision reads its head.
Not thread-safe. Knows no Redis and no clock.
"""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from baton.naming import WorkerId
from baton.policy.admission import Outlook
from baton.policy.fleet import Role, Usage, Worker

BACKLOG_STEP_S = 0.25
"""Workers are counted by their prompt work in steps of so much, ..."""
BACKLOG_STEPS = 64
"""... of which there are so many; the last has all that are longer."""

_Entry = tuple[float, bytes, WorkerId]


@dataclass(slots=True)
class _Group:
    """Workers of one role and KV layout, and their sums."""

    order: list[_Entry]
    backlog_s: float = 0.0
    free_sequences: int = 0
    sequences: int = 0
    backlogs: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Workers, and their prompt work in all, by its length in steps."""


class Roster:
    """Workers by KV layout and role, least taken first; those that drain are known by name only.

    `seed` makes ties fall differently for different routers.
    """

    def __init__(self, workers: Iterable[Worker] = (), seed: str = "") -> None:
        self._seed = seed.encode()
        self._workers: dict[WorkerId, Worker] = {}
        self._groups: dict[tuple[str, Role], _Group] = {}
        self._ties: dict[WorkerId, bytes] = {}
        for worker in workers:
            self._workers[worker.worker_id] = worker
            if worker.draining:
                continue
            group = self._groups.setdefault(_place(worker), _Group([]))
            group.order.append(self._entry(worker))
            _count(group, worker, 1)
        for group in self._groups.values():
            group.order.sort()

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def get(self, worker_id: WorkerId) -> Worker | None:
        """The worker of that name."""
        return self._workers.get(worker_id)

    def layouts(self) -> tuple[str, ...]:
        """KV layouts that workers have, those with the most workers first."""
        sizes: dict[str, int] = {}
        for (layout, _), group in self._groups.items():
            sizes[layout] = sizes.get(layout, 0) + len(group.order)
        return tuple(sorted(sizes, key=lambda layout: (-sizes[layout], layout)))

    def has(self, role: Role) -> bool:
        """Whether there is a worker of `role` that does not drain."""
        return any(group_role is role for _, group_role in self._groups)

    def first(
        self, layout: str, role: Role, count: int, test: Callable[[Worker], bool]
    ) -> list[Worker]:
        """The `count` least taken workers that pass the test."""
        found: list[Worker] = []
        group = self._groups.get((layout, role))
        for entry in group.order if group else ():
            worker = self._workers[entry[2]]
            if test(worker):
                found.append(worker)
                if len(found) == count:
                    break
        return found

    def outlook(self, prompts: Role, decodes: Role, stay_s: float) -> Outlook:
        """What a request meets whose prompt is computed by workers of the one role and that
        goes on at workers of the other."""
        computing = [group for (_, role), group in self._groups.items() if role is prompts]
        going_on = [group for (_, role), group in self._groups.items() if role is decodes]
        return Outlook(
            prompt_workers=sum(len(group.order) for group in computing),
            backlog_s=sum(group.backlog_s for group in computing),
            free_sequences=sum(group.free_sequences for group in going_on),
            sequences=sum(group.sequences for group in going_on),
            stay_s=stay_s,
            backlogs=_backlogs(computing),
        )

    def note(self, worker_id: WorkerId, usage: Usage, prompt_s: float) -> None:
        """Counts a claim on a worker that the snapshot did not see, or with negative numbers its
        end. Nothing happens where there is no such worker."""
        known = self._workers.get(worker_id)
        if known is None:
            return
        noted = replace(
            known,
            pending=known.pending + usage,
            pending_prompt_s=max(0.0, known.pending_prompt_s + prompt_s),
        )
        self.put(noted)

    def put(self, worker: Worker) -> None:
        """Takes in what is known of one worker now, in place of what was."""
        known = self._workers.get(worker.worker_id)
        if known is not None and not known.draining:
            group = self._groups[_place(known)]
            del group.order[bisect_left(group.order, self._entry(known))]
            _count(group, known, -1)
            if not group.order:
                del self._groups[_place(known)]
        self._workers[worker.worker_id] = worker
        if not worker.draining:
            group = self._groups.setdefault(_place(worker), _Group([]))
            insort(group.order, self._entry(worker))
            _count(group, worker, 1)

    def _entry(self, worker: Worker) -> _Entry:
        tie = self._ties.get(worker.worker_id)
        if tie is None:
            tie = hashlib.blake2b(self._seed + worker.worker_id.encode(), digest_size=4).digest()
            self._ties[worker.worker_id] = tie
        return (pressure(worker), tie, worker.worker_id)


def pressure(worker: Worker) -> float:
    """How taken a worker is: by prompt work where that is what it is there for, else by the
    share of what is scarcest."""
    if worker.role is Role.PREFILL:
        return worker.prompt_start_s + load(worker) * 1e-3
    return load(worker) + worker.prompt_start_s


def load(worker: Worker) -> float:
    """The taken share of what is scarcest on the worker: 0 idle, 1 full."""
    free = worker.free
    sequences = 1 - free.sequences / max(1, worker.sequence_limit)
    return max(sequences, 1 - free.kv_tokens / max(1, worker.capacity.kv_tokens))


def _place(worker: Worker) -> tuple[str, Role]:
    return worker.layout_fingerprint, worker.role


def _count(group: _Group, worker: Worker, sign: int) -> None:
    group.backlog_s += sign * worker.prompt_start_s
    group.free_sequences += sign * max(0, worker.free.sequences)
    group.sequences += sign * worker.sequence_limit
    step = min(BACKLOG_STEPS - 1, int(worker.prompt_start_s / BACKLOG_STEP_S))
    count, total_s = group.backlogs.get(step, (0, 0.0))
    group.backlogs[step] = (count + sign, total_s + sign * worker.prompt_start_s)
    if count + sign == 0:
        del group.backlogs[step]


def _backlogs(groups: list[_Group]) -> tuple[tuple[float, int], ...]:
    """Mean prompt work and number of workers, the least first."""
    counts: dict[int, tuple[int, float]] = {}
    for group in groups:
        for step, (count, total_s) in group.backlogs.items():
            others, others_s = counts.get(step, (0, 0.0))
            counts[step] = (others + count, others_s + total_s)
    return tuple(
        (max(0.0, total_s / count), count) for _, (count, total_s) in sorted(counts.items())
    )
