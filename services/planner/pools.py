"""One pool as an observation shows it: what its workers have, and can take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from baton.naming import WorkerId
from baton.policy.fleet import Role, Worker
from baton.policy.sizing import ITL_SHARE
from services.planner.observation import Observation

MARGIN = 1.1
"""Room that must remain for what is in use, as a multiple of it."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """The workers of one role."""

    role: Role
    replicas: int
    ready: int
    workers: tuple[Worker, ...]
    """Those that are registered and don't drain."""
    draining: tuple[Worker, ...]

    @classmethod
    def of(cls, observation: Observation, role: Role) -> "PoolView":
        pool = observation.pools[role]
        known = [worker for worker in observation.workers if worker.role is role]
        return cls(
            role,
            pool.replicas,
            pool.ready,
            tuple(worker for worker in known if not worker.draining),
            tuple(worker for worker in known if worker.draining),
        )

    @property
    def starting(self) -> int:
        """Workers that are on their way."""
        return max(0, self.replicas - self.ready)

    @property
    def sequences_used(self) -> float:
        """Share of the places that sequences have; those of draining workers need one soon."""
        limit = sum(worker.sequence_limit for worker in self.workers)
        return _share(self.sequences, limit)

    @property
    def sequences(self) -> int:
        """Sequences on the workers, draining ones too."""
        return sum(one.sequences for one in (*self.workers, *self.draining))

    @property
    def kv_used(self) -> float:
        """Share of the KV room that is taken, counted in the same way."""
        room = sum(worker.capacity.kv_tokens for worker in self.workers)
        return _share(sum(_kv(one) for one in (*self.workers, *self.draining)), room)

    @property
    def backlog_s(self) -> float:
        """Prompt work of the worker that has least: who comes next goes there."""
        return min((worker.prompt_start_s for worker in self.workers), default=0.0)

    @property
    def takes_prompts(self) -> bool:
        """Whether one of the workers has nothing to compute next."""
        return any(worker.wants_prompts() for worker in self.workers)

    def floor(self, itl_target_s: float) -> int:
        """Workers that hold what is in use, with a margin, and go on with it within the target.
        One that serves but is not registered may be full."""
        if not self.workers:
            return self.replicas
        unknown = max(0, self.ready - len(self.workers))
        used = max(self.sequences_used, self.kv_used)
        if self.role is Role.DECODE:
            limit = sum(_sequences_within(worker, itl_target_s) for worker in self.workers)
            used = max(used, _share(self.sequences, limit))
        # A hair less, so that a sum that is exactly full does not round up.
        holding = math.ceil(MARGIN * used * len(self.workers) - 1e-9) + unknown
        return min(self.replicas, holding)

    def victims(self, wanted: int) -> tuple[WorkerId, ...]:
        """The workers to stop, so that `wanted` remain: those with the least to move. Workers
        that have not started yet go before any of them."""
        count = self.replicas - wanted - self.starting
        ranked: Sequence[Worker] = sorted(
            self.workers, key=lambda one: (_kv(one), one.sequences, one.worker_id)
        )
        return tuple(worker.worker_id for worker in ranked[: max(0, count)])


def _sequences_within(worker: Worker, itl_target_s: float) -> int:
    """Sequences like its own that it would decode within the target, one at least: those that
    are late already may have none of their own any more."""
    mean_context = worker.context_tokens / max(1, worker.sequences)
    most = worker.capacity.sequences
    return worker.cost.sequences_within(ITL_SHARE * itl_target_s, mean_context, most)


def _kv(worker: Worker) -> int:
    return max(0, worker.running.kv_tokens + worker.pending.kv_tokens)


def _share(used: float, room: float) -> float:
    if room > 0:
        return used / room
    return 1.0 if used > 0 else 0.0
