"""The engine: admits requests, computes them step by step, puts out tokens and blocks.

    admit ──► (the caller fills `missing` blocks) ──► start ──► step, step, ... ──► finished
      └────────────── cancel or hand_over, at any moment ─────────────────────┘

A step is three calls: schedule, run, commit. Before them, sequences that outgrow their room get
more, or some are preempted: they leave as those that are handed over. Knows no wire, no queue,
no text, no threads: everything but what is marked thread-safe is called on one thread
(`engine/loop.py` has one).
"""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import torch

from baton.naming import BlobName
from engine.config import EngineConfig
from engine.constrained import Constrained
from engine.counters import Counters
from engine.departures import Departures
from engine.errors import DuplicateRequest, NoRoom, UnknownRequest, ensure
from engine.kv.cache import KVCache
from engine.kv.changes import CacheChanges
from engine.kv.layout import KVLayout
from engine.kv.names import SequenceNames
from engine.kv.prefix import Prefix
from engine.kv.sizing import plan_pools
from engine.loader import LoadedModel, load_model
from engine.logit_changes import changes_of
from engine.preemption import make_room
from engine.roofline import Roofline
from engine.runner import ChunkResult, Runner
from engine.scheduler import Chunk, Scheduler
from engine.sequence import LiveSequence
from engine.steps import EngineLoad, StepShape, load_of, shape_of
from engine.types import (
    Admission,
    BlockRef,
    EngineStatus,
    FinishReason,
    FirstToken,
    Limits,
    Request,
    SequenceOutput,
)
from engine.validation import check_request


class Engine:
    """One model with its KV. `layout`, `limits`, `capacity`, `roofline` and `config` never
    change."""

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self.config = config
        self.layout = KVLayout(
            model_digest=model.digest,
            weight_format=model.weight_format,
            dtype=config.dtype,
            block_size=config.block_size,
            groups=model.module.kv_groups(),
            kernel_family=model.module.kernels.family,
        )
        self.roofline = Roofline(model.config, self.layout)
        """Tells how much work a step is."""
        plan = plan_pools(self.layout, config, model.config.max_position)
        self.capacity = plan.capacity
        self.limits = Limits(
            plan.context_tokens, model.config.vocab_size, model.config.eos_token_ids
        )
        self._cache = KVCache(
            self.layout, plan, config.max_step_tokens, config.device, config.growth_tokens
        )
        self._scheduler = Scheduler(config.max_step_tokens)
        self._runner = Runner(model.module, self._cache, config.device)
        self._counters = Counters(plan.capacity.sequences)
        self._sequences: dict[str, LiveSequence] = {}
        self._waiting: dict[str, LiveSequence] = {}
        """Those of `_sequences` that were not started."""
        self._departures = Departures(self._cache, config.checkpoint_blocks)
        self._stalled = False
        """The last step found no blocks for any sequence; only a call can change that."""
        self.last_shape: StepShape | None = None
        """What the last step computed; None if it computed nothing, or there was none."""
        self.current_load = EngineLoad()
        """What the started sequences have before them now. Replaced, never changed: any thread
        may read it."""

    @classmethod
    def load(
        cls,
        path: Path,
        config: EngineConfig,
        progress: Callable[[int, int], None] | None = None,
    ) -> "Engine":
        """An engine for the model at `path`. Raises LoadError and ConfigError."""
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        return cls(
            load_model(path, dtype=config.dtype, device=config.device, progress=progress), config
        )

    # -- requests -----------------------------------------------------------------------

    def names(self, request: Request) -> tuple[BlobName, ...]:
        """Every name that could serve a prefix of `request`. Thread-safe."""
        names = SequenceNames(self.layout, request.salt)
        return tuple(Prefix(self.layout, request, names).all_names())

    def check(self, request: Request) -> None:
        """Raise RequestError if `request` can never be served here. Thread-safe."""
        check_request(request, self.limits)

    def can_admit(self, request: Request) -> bool:
        """Whether there is room for a request that `check` accepts."""
        return len(self._sequences) < self.capacity.sequences and self._cache.can_open(request)

    def admit(self, request: Request, available: Collection[BlobName] = ()) -> Admission:
        """Set aside room for the request and hold the blocks of its prefix.

        Room for its whole life, or as much as `EngineConfig.growth_tokens` says.

        `available` are names that the caller can fill blocks with. The sequence waits until
        `start`. Raises RequestError, DuplicateRequest, NoRoom.
        """
        self.check(request)
        if request.request_id in self._sequences or request.request_id in self._departures:
            raise DuplicateRequest(f"request {request.request_id} is in the engine already")
        if len(self._sequences) >= self.capacity.sequences:
            raise NoRoom(f"all {self.capacity.sequences} places for sequences are taken")
        kv = self._cache.open(request)
        boundary, local = self._cache.reserve(kv, available)
        end_ids, device = self._end_ids(request), self.config.device
        constrained = None
        if request.mask is not None:
            constrained = Constrained(request.mask, end_ids, self.limits.vocab_size, device)
        changes = changes_of(request, device)
        sequence = LiveSequence(request, kv, end_ids, changes, constrained)
        self._sequences[request.request_id] = sequence
        self._waiting[request.request_id] = sequence
        return Admission(request.request_id, boundary, local, kv.missing)

    def _end_ids(self, request: Request) -> frozenset[int]:
        params = request.sampling
        eos = frozenset() if params.ignore_eos else self.limits.eos_token_ids
        return params.stop_token_ids | eos

    def start(self, request_id: str, filled: Collection[BlobName] = ()) -> int:
        """Let an admitted sequence compute. Returns the tokens that need no computing.

        `filled` are the names among `missing` whose blocks hold their bytes now; others are
        computed. Raises UnknownRequest, also when the sequence was started before.
        """
        sequence = self._waiting.pop(request_id, None)
        if sequence is None:
            raise UnknownRequest(f"no request {request_id} waits to be started")
        sequence.computed = self._cache.settle(sequence.kv, filled)
        self._counters.cached(min(sequence.computed, len(sequence.request.prompt)))
        self._scheduler.add(sequence)
        self._changed()
        return sequence.computed

    def cancel(self, request_id: str) -> None:
        """Free all that the request holds, exports that were put out apart; nothing if it is
        not here.

        While `missing` blocks are being filled: only when no copy runs any more.
        """
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._end(sequence)
        self._departures.drop(request_id)
        self._changed()

    def hand_over(self, request_id: str) -> bool:
        """Let the sequence go now; False if it is not here.

        Its last output comes with the next step: HANDOVER, no tokens, and exports for a resume
        elsewhere, none if it was never started. While `missing` blocks are being filled: only
        when no copy runs any more.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return False
        self._let_go(sequence, FinishReason.HANDOVER)
        self._counters.handed_over += 1
        self._changed()
        return True

    def _preempt(self, sequence: LiveSequence) -> None:
        self._let_go(sequence, FinishReason.PREEMPTED)
        self._counters.preempted += 1

    def _let_go(self, sequence: LiveSequence, reason: FinishReason) -> None:
        """End a sequence between two steps; its exports are pinned, its promise is free."""
        started = sequence.request.request_id not in self._waiting
        self._departures.add(sequence, reason, started=started)
        self._end(sequence)

    def _end(self, sequence: LiveSequence) -> None:
        request_id = sequence.request.request_id
        del self._sequences[request_id]
        self._waiting.pop(request_id, None)
        self._scheduler.remove(sequence)
        self._cache.close(sequence.kv)

    def _changed(self) -> None:
        """The started sequences are others now, or have moved."""
        self._stalled = False
        self.current_load = load_of(self._scheduler.started)

    # -- blocks -------------------------------------------------------------------------

    def release_exports(self, blocks: Iterable[BlockRef]) -> None:
        """End the pins of exported blocks; each export is released once."""
        self._cache.release_exports(blocks)
        self._stalled = False

    def block_view(self, group: int, block: int) -> memoryview:
        """The writable bytes of one block: to read an export, to fill a missing one.

        Thread-safe, as long as the block is pinned or missing.
        """
        return self._cache.storage.view(group, block)

    @property
    def index_group(self) -> int:
        """The KV group whose named blocks `cache_names` and `take_cache_changes` tell: the first
        full-attention group, else the first one."""
        return self._cache.index_group

    def cache_names(self) -> tuple[BlobName, ...]:
        """The names of all full blocks of `index_group` that are here."""
        return self._cache.names()

    def take_cache_changes(self) -> CacheChanges:
        """How `cache_names` changed since the last call."""
        return self._cache.take_changes()

    def reset(self) -> None:
        """Forget all cached KV and set all counters to zero, as in a new engine. Raises
        IntegrityError while a sequence or an export is here."""
        ensure(not self._sequences and not self._departures, "reset while a sequence is here")
        self._cache.clear()
        self._counters = Counters(self.capacity.sequences)
        self.last_shape = None

    # -- steps --------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a step may compute something or has something to put out."""
        return len(self._departures) > 0 or (len(self._scheduler) > 0 and not self._stalled)

    def step(self) -> list[SequenceOutput]:
        """Compute one step; one output for each sequence that took part, after those of the
        sequences that have left since the last one."""
        make_room(self._scheduler.started, self._cache, self._preempt)
        outputs = self._departures.take()
        chunks = self._scheduler.schedule(self._cache)
        self.last_shape = shape_of(chunks) if chunks else None
        if chunks:
            results = self._runner.run(chunks)
            self._counters.step(chunks)
            outputs += [
                self._commit(chunk, result) for chunk, result in zip(chunks, results, strict=True)
            ]
        self._changed()
        self._stalled = not chunks
        return outputs

    def _commit(self, chunk: Chunk, result: ChunkResult) -> SequenceOutput:
        sequence, kv = chunk.sequence, chunk.sequence.kv
        request = sequence.request
        sequence.computed = chunk.end
        self._cache.commit(kv, sequence.tokens, sequence.computed)
        first_tokens: tuple[FirstToken, ...] = ()
        reason = None
        if result.sampled:
            appended = sequence.append(result.sampled)
            first_tokens, reason = appended.first_tokens, appended.reason
        elif chunk.samples:
            reason = sequence.end_without_token
        exports: list[BlockRef] = []
        if request.export:
            exports += self._cache.export_full(kv, self.config.checkpoint_blocks)
            if reason is FinishReason.HANDOVER:
                exports += self._cache.export_tail(kv, sequence.tokens, sequence.computed)
        if reason is None:
            self._cache.leave_behind(kv, sequence.boundary(self.layout.block_size))
        else:
            self._end(sequence)
        return SequenceOutput(
            request_id=request.request_id,
            tokens=tuple(result.sampled[:1]),
            computed_tokens=min(sequence.computed, len(request.prompt)),
            exports=tuple(exports),
            finish_reason=reason,
            first_tokens=first_tokens,
            prompt_logprobs=tuple(result.prompt_logprobs),
            kv_tokens=sequence.computed,
            failure=sequence.failure,
        )

    # -- status -------------------------------------------------------------------------

    def status(self) -> EngineStatus:
        """What the engine holds and has done."""
        counters, load = self._counters, self.current_load
        return EngineStatus(
            groups=self._cache.status(),
            running=len(self._scheduler),
            waiting=len(self._waiting),
            held_tokens=sum(one.kv.promised_tokens + 1 for one in self._sequences.values()),
            steps=counters.steps,
            steps_by_batch_size=tuple(counters.steps_by_batch_size),
            prefilled_tokens=counters.prefilled_tokens,
            sampled_tokens=counters.sampled_tokens,
            cached_tokens=counters.cached_tokens,
            preempted=counters.preempted,
            handed_over=counters.handed_over,
            context_tokens=load.context_tokens,
            prompt_tokens_left=load.prompt_tokens_left,
        )

    def check_integrity(self) -> None:
        """Raise IntegrityError if a structure contradicts itself."""
        self._cache.check_integrity(
            [sequence.kv for sequence in self._sequences.values()],
            self._departures.exports,
        )
        ensure(
            self._sequences.keys().isdisjoint(self._departures),
            "a sequence that has left is still here",
        )
        ensure(
            self.current_load == load_of(self._scheduler.started),
            "the load is not that of the started sequences",
        )
        self._scheduler.check_integrity(
            [one for one in self._sequences.values() if one.request.request_id not in self._waiting]
        )
