"""Workers as bytes: `Worker` to and from the `WorkerRecord` that Redis stores.

Knows only the two types.
"""

from baton.naming import Incarnation, RequestId, WorkerId
from baton.policy.fleet import NOTHING, Claim, ModelLimits, Role, Usage, Worker
from baton.v1 import worker_pb2

_ROLES = {
    Role.PREFILL: worker_pb2.WORKER_ROLE_PREFILL,
    Role.DECODE: worker_pb2.WORKER_ROLE_DECODE,
}
_ROLES_BACK = {number: role for role, number in _ROLES.items()}


def to_record(worker: Worker) -> worker_pb2.WorkerRecord:
    """The record of a worker; `pending` is not part of it."""
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
    )


def from_record(record: worker_pb2.WorkerRecord, pending: Usage = NOTHING) -> Worker:
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
        pending=pending,
    )


def _to_usage(usage: Usage) -> worker_pb2.WorkerUsage:
    return worker_pb2.WorkerUsage(sequences=usage.sequences, kv_tokens=usage.kv_tokens)


def _from_usage(usage: worker_pb2.WorkerUsage) -> Usage:
    return Usage(usage.sequences, usage.kv_tokens)
