"""Workers as bytes: `Worker` to and from the `WorkerRecord` that Redis stores.

Knows only the two types.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import astuple, replace

from google.protobuf.message import DecodeError

from baton.naming import Incarnation, RequestId, WorkerId
from baton.policy.cost import StepCost
from baton.policy.fleet import NOTHING, Claim, Load, ModelLimits, Role, Usage, Worker
from baton.v1 import worker_pb2
from baton.values import seconds
from services.common.durations import to_duration

log = logging.getLogger(__name__)

_ROLES = {
    Role.PREFILL: worker_pb2.WORKER_ROLE_PREFILL,
    Role.DECODE: worker_pb2.WORKER_ROLE_DECODE,
}
_ROLES_BACK = {number: role for role, number in _ROLES.items()}


class Records:
    """Reads a fleet's records. One that says nothing here, as a later version's may, costs no
    other worker its place; it is told of once, however often it is read."""

    def __init__(self) -> None:
        self._unread: set[bytes] = set()

    def read(
        self, records: Mapping[bytes, bytes], pending: Mapping[bytes, bytes]
    ) -> tuple[Worker, ...]:
        """The workers, each with its pending sequences, tokens and microseconds of prompts."""
        workers, unread = [], set()
        for name, data in records.items():
            sequences, tokens, prompt = map(int, pending.get(name, b"0 0 0").split())
            try:
                record = worker_pb2.WorkerRecord.FromString(data)
                workers.append(from_record(record, Usage(sequences, tokens), prompt / 1e6))
            except (DecodeError, ValueError) as error:
                unread.add(name)
                if name not in self._unread:
                    log.warning("ignored the record of %s: %s", name.decode(), error)
        self._unread = unread
        return tuple(workers)


def to_record(worker: Worker) -> worker_pb2.WorkerRecord:
    """The record of a worker; what is pending is not part of it."""
    return worker_pb2.WorkerRecord(
        worker_id=worker.worker_id,
        incarnation=worker.incarnation,
        role=_ROLES[worker.role],
        address=worker.address,
        transfer_address=worker.transfer_address,
        layout_fingerprint=worker.layout_fingerprint,
        model=worker_pb2.ModelLimits(
            name=worker.model.name,
            vocab_size=worker.model.vocab_size,
            context_tokens=worker.model.context_tokens,
            eos_token_ids=sorted(worker.model.eos_token_ids),
        ),
        capacity=_to_usage(worker.capacity),
        running=_to_usage(worker.running),
        taken=[
            worker_pb2.TakenClaim(request_id=claim.request_id, attempt=claim.attempt)
            for claim in sorted(worker.taken, key=lambda claim: (claim.request_id, claim.attempt))
        ],
        draining=worker.draining,
        pid=worker.pid,
        cost=_to_cost(worker.cost),
        load=_to_load(worker.load),
        prompt_lookahead=to_duration(worker.prompt_lookahead_s),
        step_tokens=worker.step_tokens,
        block_tokens=worker.block_tokens,
        index_group=worker.index_group,
    )


def from_record(
    record: worker_pb2.WorkerRecord, pending: Usage = NOTHING, pending_prompt_s: float = 0.0
) -> Worker:
    """The worker of a record. Raises ValueError for a role that is not known here."""
    if record.role not in _ROLES_BACK:
        raise ValueError(f"worker {record.worker_id}: unknown role {record.role}")
    return Worker(
        worker_id=WorkerId(record.worker_id),
        incarnation=Incarnation(record.incarnation),
        role=_ROLES_BACK[record.role],
        address=record.address,
        transfer_address=record.transfer_address,
        layout_fingerprint=record.layout_fingerprint,
        model=ModelLimits(
            name=record.model.name,
            vocab_size=record.model.vocab_size,
            context_tokens=record.model.context_tokens,
            eos_token_ids=frozenset(record.model.eos_token_ids),
        ),
        capacity=_from_usage(record.capacity),
        running=_from_usage(record.running),
        taken=frozenset(
            Claim(RequestId(claim.request_id), claim.attempt) for claim in record.taken
        ),
        draining=record.draining,
        pid=record.pid,
        cost=_from_cost(record.cost),
        load=_from_load(record.load),
        prompt_lookahead_s=seconds(record.prompt_lookahead),
        step_tokens=record.step_tokens,
        block_tokens=record.block_tokens,
        index_group=record.index_group,
        pending=pending,
        pending_prompt_s=pending_prompt_s,
    )


def _to_usage(usage: Usage) -> worker_pb2.WorkerUsage:
    return worker_pb2.WorkerUsage(sequences=usage.sequences, kv_tokens=usage.kv_tokens)


def _from_usage(usage: worker_pb2.WorkerUsage) -> Usage:
    return Usage(usage.sequences, usage.kv_tokens)


def _to_cost(cost: StepCost) -> worker_pb2.StepCost:
    return worker_pb2.StepCost(
        base_seconds=cost.base_s,
        prompt_token_seconds=cost.prompt_token_s,
        prompt_pair_seconds=cost.prompt_pair_s,
        sequence_seconds=cost.sequence_s,
        context_token_seconds=cost.context_token_s,
        relative_error=cost.relative_error,
    )


def _from_cost(cost: worker_pb2.StepCost) -> StepCost:
    """Raises ValueError for times that are none: all that compares workers would go wrong."""
    found = StepCost(
        base_s=cost.base_seconds,
        prompt_token_s=cost.prompt_token_seconds,
        prompt_pair_s=cost.prompt_pair_seconds,
        sequence_s=cost.sequence_seconds,
        context_token_s=cost.context_token_seconds,
        relative_error=cost.relative_error,
    )
    times = astuple(replace(found, relative_error=0.0))
    if not all(0 <= value < math.inf for value in times):
        raise ValueError(f"it takes {found}")
    return found


def _to_load(load: Load) -> worker_pb2.WorkerLoad:
    """On the wire a limit of 0 sequences is none: a worker takes one at least."""
    target = load.itl_target_s
    return worker_pb2.WorkerLoad(
        prompt_backlog=to_duration(load.prompt_backlog_s),
        context_tokens=load.context_tokens,
        itl_target=None if target is None else to_duration(target),
        sequence_limit=load.sequence_limit or 0,
        decode_step=to_duration(load.decode_step_s),
    )


def _from_load(load: worker_pb2.WorkerLoad) -> Load:
    return Load(
        prompt_backlog_s=seconds(load.prompt_backlog),
        context_tokens=load.context_tokens,
        itl_target_s=seconds(load.itl_target) if load.HasField("itl_target") else None,
        sequence_limit=load.sequence_limit or None,
        decode_step_s=seconds(load.decode_step),
    )
