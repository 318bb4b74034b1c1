"""What an engine worker's metrics tell: read from its host and its engine, as its status is.

What the engine holds is asked for between two steps; where a step takes too long, that part is
left out of the scrape.
"""

from engine.types import EngineStatus
from services.common.telemetry.metric import Reading, Source, counter, gauge, histogram
from services.common.telemetry.tally import SIZE_BUCKETS, Tally
from services.worker.device_metrics import METRICS as DEVICE_METRICS
from services.worker.device_metrics import DeviceMetrics
from services.worker.host import Host

TOTAL_BLOCKS = gauge("baton_worker_kv_blocks", "KV blocks of the pool.", "group", stands=True)
USED_BLOCKS = gauge(
    "baton_worker_kv_used_blocks", "KV blocks that sequences, exports or imports hold.", "group"
)
CACHED_BLOCKS = gauge(
    "baton_worker_kv_cached_blocks",
    "KV blocks that no one holds and that keep named KV: prefix cache, free to take.",
    "group",
    stands=True,
)
FREE_BLOCKS = gauge(
    "baton_worker_kv_free_blocks",
    "KV blocks that neither hold nor keep anything.",
    "group",
    stands=True,
)
RUNNING = gauge("baton_worker_running_sequences", "Sequences in the running batch.")
WAITING = gauge(
    "baton_worker_waiting_sequences", "Sequences admitted that wait for their KV or a place."
)
CONTEXT = gauge("baton_worker_context_tokens", "Tokens in the contexts of what decodes now.")
PROMPT_LEFT = gauge(
    "baton_worker_prompt_left_tokens", "Tokens that started prompts have still to compute."
)
BATCH = histogram("baton_worker_batch_sequences", "Sequences of each step.")
PREFILLED = counter("baton_worker_prompt_tokens_total", "Prompt tokens computed.")
SAMPLED = counter("baton_worker_sampled_tokens_total", "Tokens sampled.")
CACHED = counter("baton_worker_cached_tokens_total", "Prompt tokens found in a cache.")
PREEMPTED = counter(
    "baton_worker_preempted_sequences_total",
    "Sequences that left with a handoff for lack of KV blocks.",
)
DRAINED = counter(
    "baton_worker_drained_sequences_total",
    "Sequences that left with a handoff because the worker drains.",
)
ENGINE_METRICS = (
    *(TOTAL_BLOCKS, USED_BLOCKS, CACHED_BLOCKS, FREE_BLOCKS, RUNNING, WAITING, CONTEXT),
    *(PROMPT_LEFT, BATCH, PREFILLED, SAMPLED, CACHED, PREEMPTED, DRAINED),
)

STEP = histogram(
    "baton_worker_step_seconds",
    "Time of each step, by phase: prefill (prompts alone), decode (no prompt), mixed.",
    "phase",
)
RUNS = counter(
    "baton_worker_requests_total",
    "Calls that ended on this worker: finished, cancelled, refused (ABORTED), failed.",
    "outcome",
)
BACKLOG = gauge(
    "baton_worker_prompt_backlog_seconds", "Predicted time to compute the prompts that it took."
)
HELD = gauge("baton_worker_held_requests", "Calls that hold room on this worker.")
LIMIT = gauge(
    "baton_worker_sequence_limit",
    "Sequences that it takes, so that the tightest inter-token latency among them holds.",
    stands=True,
)
DECODE_STEP = gauge(
    "baton_worker_decode_step_seconds",
    "Moving mean of steps that decoded; it stays when they end.",
    stands=True,
)
COST_ERROR = gauge(
    "baton_worker_cost_error_ratio",
    "Mean relative error of recent predictions of steps; 1: nothing was measured.",
    stands=True,
)
LOCAL = counter(
    "baton_worker_local_prompts_total",
    "Prompts computed beside the running batch, for requests that were not handed over.",
)
RECOMPUTED = counter(
    "baton_worker_recomputed_handoffs_total",
    "Handoffs of which some KV had to be computed again.",
)
PUBLISHED_BLOBS = counter(
    "baton_worker_published_blobs_total", "KV blobs published to the transfer service."
)
PUBLISHED_BYTES = counter(
    "baton_worker_published_bytes_total", "Bytes published to the transfer service."
)
FETCHED_BLOBS = counter(
    "baton_worker_fetched_blobs_total", "KV blobs fetched from the transfer service."
)
FETCHED_BYTES = counter(
    "baton_worker_fetched_bytes_total", "Bytes fetched from the transfer service."
)
FETCH = histogram(
    "baton_worker_fetch_seconds", "What sequences waited for KV from the transfer service."
)
CORRUPT = counter(
    "baton_worker_corrupt_blobs_total", "Blobs fetched whose bytes failed their checksum."
)
GIVEN_UP = counter(
    "baton_worker_transfer_given_up_total",
    "Times that the transfer service was given up for a while since it did not answer.",
)
ATTACHED = gauge(
    "baton_worker_transfer_attached",
    "1: it has a segment to publish into; 0: it computes and keeps KV alone.",
    stands=True,
)
ALIVE = gauge("baton_worker_engine_alive", "1: the engine runs; 0: it failed.", stands=True)
DRAINING = gauge("baton_worker_draining", "1: it takes nothing new and will end; 0: it serves.")
HOST_METRICS = (
    *(STEP, RUNS, BACKLOG, HELD, LIMIT, DECODE_STEP, COST_ERROR, LOCAL, RECOMPUTED),
    *(PUBLISHED_BLOBS, PUBLISHED_BYTES, FETCHED_BLOBS, FETCHED_BYTES, FETCH, CORRUPT, GIVEN_UP),
    *(ATTACHED, ALIVE, DRAINING),
)
METRICS = (*ENGINE_METRICS, *HOST_METRICS, *DEVICE_METRICS)


class WorkerMetrics:
    """Reads what one host holds and has done."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._device = DeviceMetrics(host)

    def sources(self) -> tuple[Source, ...]:
        """Read a worker's metrics; those of the engine apart, since it may be late."""
        return (
            self._device.source(),
            Source("worker", self._read_host, HOST_METRICS),
            Source("engine", self._read_engine, ENGINE_METRICS),
        )

    async def _read_host(self) -> list[Reading]:
        return [*self._state(), *self._counts(), *self._transfer()]

    async def _read_engine(self) -> list[Reading]:
        engine, canary = await self._host.port.status(), self._host.canary.work
        return [
            *_blocks(engine),
            RUNNING.at(engine.running),
            WAITING.at(engine.waiting),
            CONTEXT.at(engine.context_tokens),
            PROMPT_LEFT.at(engine.prompt_tokens_left),
            BATCH.at(_batches(engine)),
            PREFILLED.at(engine.prefilled_tokens - canary.computed_tokens),
            SAMPLED.at(engine.sampled_tokens - canary.sampled_tokens),
            CACHED.at(engine.cached_tokens - canary.cached_tokens),
            PREEMPTED.at(engine.preempted),
            DRAINED.at(engine.handed_over),
        ]

    def _state(self) -> list[Reading]:
        host, worker = self._host, self._host.describe()
        return [
            BACKLOG.at(worker.load.prompt_backlog_s),
            HELD.at(worker.running.sequences),
            LIMIT.at(worker.sequence_limit),
            DECODE_STEP.at(worker.load.decode_step_s),
            COST_ERROR.at(worker.cost.relative_error),
            ATTACHED.at(host.transfer.attached),
            ALIVE.at(host.failure is None),
            DRAINING.at(worker.draining),
        ]

    def _counts(self) -> list[Reading]:
        host, counters = self._host, self._host.runs.counters
        return [
            *STEP.each(host.step_times.by_phase),
            RUNS.at(counters.finished, "finished"),
            RUNS.at(counters.cancelled, "cancelled"),
            RUNS.at(counters.refused, "refused"),
            RUNS.at(counters.failed, "failed"),
            LOCAL.at(host.local_prompts),
            RECOMPUTED.at(host.recomputed_handoffs),
        ]

    def _transfer(self) -> list[Reading]:
        stats = self._host.transfer.stats
        return [
            PUBLISHED_BLOBS.at(stats.published_blobs),
            PUBLISHED_BYTES.at(stats.published_bytes),
            FETCHED_BLOBS.at(stats.fetched_blobs),
            FETCHED_BYTES.at(stats.fetched_bytes),
            FETCH.at(self._host.sequences.fetches),
            CORRUPT.at(stats.corrupt_blobs),
            GIVEN_UP.at(stats.breaker_opened),
        ]


def _blocks(engine: EngineStatus) -> list[Reading]:
    readings: list[Reading] = []
    for group in engine.groups:
        free = group.total_blocks - group.used_blocks - group.cached_blocks
        readings += [
            TOTAL_BLOCKS.at(group.total_blocks, group.name),
            USED_BLOCKS.at(group.used_blocks, group.name),
            CACHED_BLOCKS.at(group.cached_blocks, group.name),
            FREE_BLOCKS.at(free, group.name),
        ]
    return readings


def _batches(engine: EngineStatus) -> Tally:
    """Steps by their number of sequences, which the engine counts exactly, in buckets."""
    batches = Tally(SIZE_BUCKETS)
    for size, steps in enumerate(engine.steps_by_batch_size):
        batches.observe(size, count=steps)
    return batches
