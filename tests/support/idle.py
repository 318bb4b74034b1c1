"""What an idle fleet must not hold."""

from baton.v1 import inference_pb2


def held_in(fleet: inference_pb2.GetFleetResponse) -> list[str]:
    """What is not zero that is zero in an idle fleet; also what does not answer."""
    found: dict[str, object] = {
        "queue.waiting": fleet.queue.waiting,
        "queue.turns": fleet.queue.turns,
        "queue.claims": fleet.queue.claims,
        "queue.queued_work": fleet.queue.queued_work.ToNanoseconds(),
        "redis away": not fleet.queue.redis_available,
        "router.running_requests": fleet.router.running_requests,
        "router.leases": fleet.router.leases,
    }
    for worker in fleet.workers:
        name, status = worker.record.worker_id, worker.status
        found |= {
            f"{name} does not answer": not worker.HasField("status"),
            f"{name} error": worker.error,
            f"{name} pending_claims": worker.pending_claims,
            f"{name} record.running.sequences": worker.record.running.sequences,
            f"{name} record.running.kv_tokens": worker.record.running.kv_tokens,
            f"{name} record.taken": len(worker.record.taken),
            f"{name} record.load.prompt_backlog": worker.record.load.prompt_backlog.ToNanoseconds(),
            f"{name} record.load.context_tokens": worker.record.load.context_tokens,
            f"{name} running_sequences": status.running_sequences,
            f"{name} waiting_sequences": status.waiting_sequences,
        }
        found |= {f"{name} {g.name} used_blocks": g.used_blocks for g in status.kv_groups}
    for transfer in fleet.transfers:
        name, has = f"transfer {transfer.address}", transfer.status
        found |= {
            f"{name} does not answer": not transfer.HasField("status"),
            f"{name} error": transfer.error,
            f"{name} leases": has.leases,
            f"{name} leased_blobs": has.leased_blobs,
            f"{name} reservations": has.reservations,
        }
    return [f"{name}: {value}" for name, value in found.items() if value]
