"""What the router's metrics tell of the router itself, of the queue and of the fleet.

Read from those who keep it, as `services.router.status` does; what requests took is in
`services.router.request_metrics`.
"""

from collections import Counter
from collections.abc import Callable

from baton.policy.fleet import Role, Worker
from services.common.telemetry.metric import Reading, Source, counter, gauge
from services.router.dispatch import Dispatcher
from services.router.fleet import FleetView
from services.router.leases import LeaseKeeper
from services.router.register import Register
from services.router.report import Outcome

REQUESTS = counter(
    "baton_router_requests_total",
    "Requests that ended, invalid ones too, by how and why; the reason of those that did not "
    "fail is empty.",
    *("outcome", "reason"),
)
LIMITED = counter(
    "baton_router_limited_requests_total", "Requests refused by their tenant's limits."
)
RETRIED = counter(
    "baton_router_retried_legs_total",
    "Calls to workers that were made again after one failed or refused.",
)
RESUMED = counter(
    "baton_router_resumed_sequences_total",
    "Sequences that went on, after a decode worker failed, from KV that was there still.",
)
RECOMPUTED = counter(
    "baton_router_recomputed_sequences_total",
    "Sequences that went on, after a decode worker failed, with their KV computed again.",
)
MIGRATED = counter(
    "baton_router_migrated_sequences_total",
    "Times that a sequence moved with its KV, since its worker was full or draining.",
)
DEGRADED_REQUESTS = counter(
    "baton_router_degraded_requests_total",
    "Completed requests that were placed while the workers of one role were gone.",
)
LOCAL = counter(
    "baton_router_local_prompts_total",
    "Completed requests whose prompt a decode worker computed because that was cheaper.",
)
RUNNING = gauge("baton_router_running_requests", "Requests in progress, waiting ones included.")
WAITING = gauge("baton_router_waiting_requests", "Requests of this router that wait for a turn.")
HELD = gauge("baton_router_held_claims", "Claims that this router keeps alive on workers.")
LEASES = gauge("baton_router_leases", "Leases on KV blobs that this router renews.")
INDEXED = gauge(
    "baton_router_indexed_blobs", "Names that the index of workers' caches knows.", stands=True
)
QUEUE_WAITING = gauge(
    "baton_router_queue_waiting_requests", "Requests that wait for a turn, over all routers."
)
QUEUE_WORK = gauge("baton_router_queue_work_seconds", "Prompt work of all requests that wait.")
TURNS = gauge("baton_router_queue_turns", "Turns that were given and not yet used.")
CLAIMS = gauge("baton_router_queue_claims", "Claims that workers have not told of yet.")
REDIS = gauge(
    "baton_router_redis_available", "1: Redis answered last time; 0: it is away.", stands=True
)
DEGRADED = gauge("baton_router_degraded", "1: the workers of a role are gone; 0: they are there.")
WORKERS = gauge(
    "baton_router_workers",
    "Workers in rotation, by role and state: ready, failing (a call failed just now), draining.",
    *("role", "state"),
    stands=True,
)
COST_ERROR = gauge(
    "baton_router_worker_cost_error_ratio",
    "Mean relative error of recent predictions of a worker's steps; 1: nothing was measured.",
    *("worker", "role"),
    stands=True,
)
METRICS = (
    *(REQUESTS, LIMITED, RETRIED, RESUMED, RECOMPUTED, MIGRATED, DEGRADED_REQUESTS, LOCAL),
    *(RUNNING, WAITING, HELD, LEASES, INDEXED, QUEUE_WAITING, QUEUE_WORK, TURNS, CLAIMS),
    *(REDIS, DEGRADED, WORKERS, COST_ERROR),
)

_STATES = ("ready", "failing", "draining")


class RouterMetrics:
    """Reads what a router and its view of the fleet hold."""

    def __init__(
        self,
        register: Register,
        dispatcher: Dispatcher,
        fleet: FleetView,
        leases: LeaseKeeper,
        indexed_blobs: Callable[[], int],
    ) -> None:
        self._register = register
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._leases = leases
        self._indexed_blobs = indexed_blobs

    def source(self) -> Source:
        """Reads the metrics of this module."""
        return Source("router", self._read, METRICS)

    async def _read(self) -> list[Reading]:
        return [*self._counts(), *self._holdings(), *self._queue(), *self._workers()]

    def _counts(self) -> list[Reading]:
        counters = self._register.counters
        ended = {(outcome, ""): 0 for outcome in Outcome} | counters.ended
        return [
            *(REQUESTS.at(count, how.value, why) for (how, why), count in ended.items()),
            LIMITED.at(counters.limited),
            RETRIED.at(counters.retried_legs),
            RESUMED.at(counters.resumed),
            RECOMPUTED.at(counters.recomputed),
            MIGRATED.at(counters.migrated),
            DEGRADED_REQUESTS.at(counters.degraded),
            LOCAL.at(counters.local),
        ]

    def _holdings(self) -> list[Reading]:
        return [
            RUNNING.at(self._register.running),
            WAITING.at(self._dispatcher.waiting),
            HELD.at(self._dispatcher.holding),
            LEASES.at(len(self._leases)),
            INDEXED.at(self._indexed_blobs()),
        ]

    def _queue(self) -> list[Reading]:
        fleet, snapshot = self._fleet, self._fleet.snapshot
        told = [REDIS.at(fleet.redis_available), DEGRADED.at(bool(fleet.degraded))]
        if snapshot is None:
            return told
        return [
            *told,
            QUEUE_WAITING.at(snapshot.waiting),
            QUEUE_WORK.at(max(0.0, snapshot.queued_s)),
            TURNS.at(snapshot.turns),
            CLAIMS.at(snapshot.claims),
        ]

    def _workers(self) -> list[Reading]:
        workers = self._fleet.workers
        counts = Counter((one.role.value, self._state(one)) for one in workers)
        return [
            *(WORKERS.at(counts[role.value, s], role.value, s) for role in Role for s in _STATES),
            *(
                COST_ERROR.at(one.cost.relative_error, one.worker_id, one.role.value)
                for one in workers
            ),
        ]

    def _state(self, worker: Worker) -> str:
        if worker.draining:
            return "draining"
        return "ready" if self._fleet.usable(worker) else "failing"
