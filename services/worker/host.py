"""One engine worker: what its servicers share, and what it tells the fleet.

Owns the engine's port, the transfer client, the runs and the sequences. Knows no wire.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

from baton.errors import InternalError, Unavailable
from baton.naming import Incarnation, WorkerId
from baton.policy.fleet import ModelLimits, Role, Usage, Worker
from engine.engine import Engine
from engine.errors import IntegrityError
from services.common.background import Background
from services.common.transfer.client import TransferClient
from services.worker.port import EnginePort
from services.worker.runs import Runs
from services.worker.sequences import Sequences


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
        on_failure: Callable[[], None],
        cores: set[int] | None = None,
    ) -> None:
        self.identity = identity
        self.address = ""
        self.changed: Callable[[], None] = lambda: None
        self.transfer = transfer
        self.port = EnginePort(engine, self._engine_failed, cores)
        self.background = Background()
        self.runs = Runs(lambda: self.changed())
        self.sequences = Sequences(self.port, transfer, self.background, fetch_s)
        self.recomputed_handoffs = 0
        self.failure: BaseException | None = None
        self._on_failure = on_failure

    @property
    def fingerprint(self) -> str:
        """Of the KV layout."""
        return self.port.layout.fingerprint

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
        )

    def refuse_new(self) -> None:
        """Takes nothing new from now on; what runs goes on."""
        self.runs.close(Unavailable("the worker is draining", reason="DRAINING"))

    def end_all(self) -> None:
        """Ends what runs, so that its callers go on elsewhere."""
        self.runs.end_all(Unavailable("the worker stops", reason="DRAINING"))

    async def check_integrity(self) -> None:
        """Raises IntegrityError naming what is broken, here or in the engine."""
        self.runs.check_integrity()
        streams = len(self.port.outbox)
        if streams > self.runs.count + len(self.background):
            raise IntegrityError(f"{streams} streams are open for {self.runs.count} runs")
        await self.port.check_integrity()

    def _engine_failed(self, error: BaseException) -> None:
        self.failure = error
        self.runs.close(Unavailable("the worker's engine failed", reason="ENGINE_FAILED"))
        self.runs.end_all(InternalError(f"the engine failed: {type(error).__name__}: {error}"))
        self._on_failure()
