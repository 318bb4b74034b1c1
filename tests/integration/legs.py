"""Plays the router's part: calls the legs of a request directly, one at a time."""

import contextlib
import uuid
from collections.abc import AsyncIterator

import grpc

from baton.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
    sampling_pb2,
    transfer_pb2,
    transfer_pb2_grpc,
    worker_pb2,
)
from services.common import rpc


class Legs:
    """Stubs to the one prefill worker, the one decode worker and their transfer service."""

    def __init__(self, prefill, decode, records) -> None:
        self.prefill_stub = prefill
        self.decode_stub = decode
        self.records = records

    async def prefill(self, prompt, *, timeout=10.0, request_id=None, **sampling):
        """Calls Prefill; returns the call, to await or to cancel."""
        return self.prefill_stub.Prefill(
            prefill_pb2.PrefillRequest(
                request_id=request_id or f"legs-{uuid.uuid4().hex}",
                incarnation=self.records[worker_pb2.WORKER_ROLE_PREFILL].incarnation,
                prompt_token_ids=prompt,
                sampling=sampling_pb2.SamplingParams(
                    **({"temperature": 0.0, "seed": 1, "max_tokens": 16} | sampling)
                ),
                lease_id=f"lease-{uuid.uuid4().hex}",
            ),
            timeout=timeout,
        )

    def decode(self, handoff, *, timeout=10.0):
        """Calls Decode; returns the call, to iterate or to cancel."""
        return self.decode_stub.Decode(
            decode_pb2.DecodeRequest(
                request_id=handoff.request_id,
                attempt=handoff.attempt,
                incarnation=self.records[worker_pb2.WORKER_ROLE_DECODE].incarnation,
                handoff=handoff,
            ),
            timeout=timeout,
        )

    async def release(self, handoff):
        """Ends the handoff's lease, as the router does."""
        async with rpc.channel(handoff.manifest.transfer_address) as channel:
            await transfer_pb2_grpc.TransferServiceStub(channel).ReleaseLease(
                transfer_pb2.ReleaseLeaseRequest(lease_id=handoff.lease_id), timeout=5
            )


@contextlib.asynccontextmanager
async def open_legs(cluster) -> AsyncIterator[Legs]:
    """Legs to the cluster's workers."""
    records = {worker.record.role: worker.record for worker in cluster.fleet().workers}
    prefill = rpc.channel(records[worker_pb2.WORKER_ROLE_PREFILL].address)
    decode = rpc.channel(records[worker_pb2.WORKER_ROLE_DECODE].address)
    async with prefill, decode:
        yield Legs(
            prefill_pb2_grpc.PrefillServiceStub(prefill),
            decode_pb2_grpc.DecodeServiceStub(decode),
            records,
        )


async def tokens_of(call: grpc.aio.UnaryStreamCall) -> list[int]:
    """All tokens of a Decode call, which must end with `finished`."""
    tokens, finished = [], False
    async for event in call:
        assert not finished, "an event came after `finished`"
        tokens += [token.token_id for token in event.tokens.tokens]
        finished = event.HasField("finished")
    assert finished
    return tokens
