"""One engine worker: what its servicers share, and what it tells the fleet.

Owns the engine's port, the transfer client, the runs, the sequences and the cost of steps.
Knows no wire.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

from baton.errors import InternalError, Unavailable
from baton.naming import Incarnation, LeaseId, WorkerId
from baton.policy.cost import PRIORS
from baton.policy.fleet import ModelLimits, Role, Usage, Worker
from engine.engine import Engine
from engine.errors import IntegrityError
from engine.peaks import Peaks
from engine.steps import StepReport
from services.common.background import Background
from services.common.transfer.client import TransferClient
from services.worker.canary import Canary
from services.worker.constraints import Constraints
from services.worker.costs import CostModel
from services.worker.load import LoadMeter
from services.worker.port import EnginePort
from services.worker.publishing import Publication
from services.worker.runs import Runs
from services.worker.sequences import Sequences
from services.worker.step_times import StepTimes
from services.worker.work import WorkMeter


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is and where."""

    worker_id: WorkerId
    incarnation: Incarnation
    role: Role
    model_name: str
    transfer_address: str


class Host:
    """An engine worker. `changed` is called whenever the fleet should hear of it early."""

    def __init__(
        self,
        identity: Identity,
        engine: Engine,
        transfer: TransferClient,
        *,
        fetch_s: float,
        publish_s: float,
        lookahead_steps: float,
        on_failure: Callable[[], None],
        constraints: Constraints,
        cores: set[int] | None = None,
        canary_ratio: float = 0.0,
    ) -> None:
        """Needs a running loop.

        `fetch_s`, `publish_s`: longest waits for KV to come and to be published.
        `lookahead_steps`: full steps of prompt work that the worker wants to have ahead.
        `canary_ratio`: of handoffs that are computed again to compare.
        """
        self.identity = identity
        self.address = ""
        self.metrics_address = ""
        """Where the process serves its metrics; empty: nowhere."""
        self.changed: Callable[[], None] = lambda: None
        self.transfer = transfer
        self.constraints = constraints
        self.costs = CostModel(PRIORS.get(engine.config.device.split(":")[0], PRIORS["cpu"]))
        self.step_times = StepTimes()
        self.work = WorkMeter(engine.roofline.of)
        self.peaks: Peaks | None = None
        """What the device can do; None where it was not measured."""
        self.port = EnginePort(
            engine,
            self._engine_failed,
            cores,
            on_step=self._stepping,
            on_delivered=self._stepped,
        )
        self.background = Background()
        self.runs = Runs(lambda: self.changed())
        self.load = LoadMeter(
            lambda: self.port.load,
            self.runs,
            self.costs,
            max_sequences=engine.capacity.sequences,
            step_tokens=engine.config.max_step_tokens,
            lookahead_steps=lookahead_steps,
        )
        self.sequences = Sequences(self.port, transfer, self.background, fetch_s)
        self.canary = Canary(self.port, self.background, self._is_quiet, canary_ratio)
        self.sequences.on_prompt = self._make_way
        self.recomputed_handoffs = 0
        self.local_prompts = 0
        """Prompts that were computed for sequences that go on here."""
        self.failure: BaseException | None = None
        self._publish_s = publish_s
        self._on_failure = on_failure

    @property
    def fingerprint(self) -> str:
        """Of the KV layout."""
        return self.port.layout.fingerprint

    @property
    def growth_tokens(self) -> int | None:
        """Tokens that a sequence gets room for at first beyond its own; None: for all."""
        return self.port.config.growth_tokens

    async def start(self, warmup_s: float, *, peaks: bool = False) -> None:
        """Starts the engine, and measures it for at most `warmup_s`; with `peaks`, what its
        device can do, too."""
        self.port.start()
        if peaks:
            self.peaks = await self.port.measure_peaks()
        self.costs.learn(await self.port.warm_up(warmup_s))

    def publication(self, lease_id: LeaseId) -> Publication:
        """For the blobs of one sequence, under a lease."""
        return Publication(
            self.port,
            self.transfer,
            lease_id,
            deadline_s=self._publish_s,
            seconds_per_token=self.load.recompute_s(),
        )

    def describe(self) -> Worker:
        """The worker as the fleet knows it."""
        limits, capacity = self.port.limits, self.port.capacity
        return Worker(
            worker_id=self.identity.worker_id,
            incarnation=self.identity.incarnation,
            role=self.identity.role,
            address=self.address,
            transfer_address=self.identity.transfer_address,
            layout_fingerprint=self.fingerprint,
            model=ModelLimits(
                self.identity.model_name,
                limits.vocab_size,
                limits.context_tokens,
                limits.eos_token_ids,
            ),
            capacity=Usage(capacity.sequences, capacity.kv_tokens),
            running=self.runs.usage,
            taken=self.runs.taken,
            draining=self.runs.closed,
            pid=os.getpid(),
            cost=self.costs.cost,
            load=self.load.load(),
            prompt_lookahead_s=self.load.lookahead_s,
            step_tokens=self.port.config.max_step_tokens,
            block_tokens=self.port.layout.block_size,
            index_group=self.port.index_group,
        )

    def refuse_new(self) -> None:
        """Takes nothing new from now on; what runs goes on."""
        self.canary.stop()
        self.runs.close(Unavailable("the worker is draining", reason="DRAINING"))

    def drain(self) -> None:
        """Takes nothing new, and lets go of the sequences that decode; prompts go on."""
        self.refuse_new()
        self.runs.drain_all()

    def end_all(self) -> None:
        """Ends what runs, so that its callers go on elsewhere."""
        self.runs.end_all(Unavailable("the worker stops", reason="DRAINING"))

    def trouble(self, stall_s: float) -> str:
        """What keeps the worker from its work, for people: that its engine failed, or took longer
        than `stall_s` for one step. Empty: nothing."""
        if self.failure is not None:
            return f"the engine failed: {self.failure}"
        busy_s = self.port.busy_s
        return f"the engine has been at one step for {busy_s:.0f} s" if busy_s > stall_s else ""

    async def check_integrity(self) -> None:
        """Raises IntegrityError naming what is broken, here or in the engine."""
        self.runs.check_integrity()
        streams = len(self.port.outbox)
        if streams > self.runs.count + len(self.background):
            raise IntegrityError(f"{streams} streams are open for {self.runs.count} runs")
        await self.port.check_integrity()

    def _stepping(self, report: StepReport) -> None:
        """On the engine's thread, after each step."""
        self.costs.observe(report)
        self.step_times.observe(report)
        self.work.observe(report)

    def _is_quiet(self, kv_tokens: int) -> bool:
        """Whether a sequence of so many tokens would neither slow others down by much nor take
        room that they are about to need: half of all stays free."""
        load, held, capacity = self.port.load, self.runs.usage, self.port.capacity
        computes = load.prompt_tokens_left or self.runs.unstarted_prompts
        return (
            not computes
            and 4 * load.sequences <= capacity.sequences
            and 2 * held.sequences < capacity.sequences
            and 2 * (held.kv_tokens + kv_tokens) <= capacity.kv_tokens
        )

    def _make_way(self, tokens: int) -> None:
        """A sequence came that has so many tokens to compute."""
        if tokens > self.port.layout.block_size or 4 * self.runs.usage.sequences > (
            self.port.capacity.sequences
        ):
            self.canary.give_way()

    def _stepped(self) -> None:
        if self.load.ran_low():
            self.changed()

    def _engine_failed(self, error: BaseException) -> None:
        self.failure = error
        self.canary.stop()
        self.runs.close(Unavailable("the worker's engine failed", reason="ENGINE_FAILED"))
        self.runs.end_all(InternalError(f"the engine failed: {type(error).__name__}: {error}"))
        self._on_failure()
