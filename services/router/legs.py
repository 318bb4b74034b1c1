"""Calls to prefill and decode workers.

Maps failures, and sees to it that no call outlives its caller or its worker, or stays silent
for ever. Knows nothing of claims, renewals or retries, nor what is in the messages.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from baton import errors
from baton.policy.fleet import Worker
from baton.v1 import decode_pb2_grpc, prefill_pb2_grpc
from services.common.telemetry.context import Metadata
from services.router import calls
from services.router.calls import DecodeCall, DecodeEvent, Finished, HandedOff, Prefilled, Tokens
from services.router.channels import Channels
from services.router.deadline import Deadline
from services.router.leases import Lease
from services.router.validation import Generation
from services.router.vigil import Vigil

_CLOSING_S = 0.5
_CLOCK_SKEW_S = 0.05
_TRANSPORT_CODES = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNKNOWN,
}
"""Codes that gRPC itself answers with when a connection breaks or another process listens;
Baton's own statuses carry details."""

Lost = Callable[[Worker], asyncio.Event]
"""Set once a worker is known to be gone."""


class Legs:
    """The two calls that a request consists of, over channels that are kept."""

    def __init__(
        self, channels: Channels, prefill_timeout_s: float, decode_stall_s: float, lost: Lost
    ) -> None:
        self._channels = channels
        self._lost = lost
        self._prefill_timeout_s = prefill_timeout_s
        self._decode_stall_s = decode_stall_s

    async def prefill(
        self,
        worker: Worker,
        attempt: int,
        generation: Generation,
        lease: Lease,
        deadline: Deadline,
        headers: Metadata = (),
    ) -> Prefilled:
        """Has `worker` compute the prompt; cancelling this stops it there. `headers` go with the
        call.

        Raises Unavailable or LostRace where another worker may do better, DeadlineExceeded
        when the caller's deadline passed, and whatever else the worker answered.
        """
        request = calls.prefill_request(worker, attempt, generation, lease)
        with self._channels.use(worker.address) as channel, _failures(worker, deadline):
            stub = prefill_pb2_grpc.PrefillServiceStub(channel)
            timeout = deadline.remaining(at_most=self._prefill_timeout_s)
            async with Vigil(worker, self._lost(worker)) as vigil, vigil.waiting():
                answer = await stub.Prefill(request, timeout=timeout, metadata=headers)
        return calls.prefilled(answer, generation.choices, worker, lease)

    async def decode(
        self, worker: Worker, asked: DecodeCall, deadline: Deadline, headers: Metadata = ()
    ) -> AsyncGenerator[DecodeEvent, None]:
        """Has `worker` go on with a choice.

        The last event is `Finished` or `HandedOff`; a stream that ends without it raises
        Unavailable. Raises what `prefill` raises. Closing this generator ends the call.
        """
        request = calls.decode_request(worker, asked)
        with self._channels.use(worker.address) as channel, _failures(worker, deadline):
            stub = decode_pb2_grpc.DecodeServiceStub(channel)
            async with Vigil(worker, self._lost(worker)) as vigil:
                call = stub.Decode(request, timeout=deadline.remaining(), metadata=headers)
                patience = self._prefill_timeout_s
                try:
                    while (response := await _read(call, patience, vigil)) is not grpc.aio.EOF:
                        event = calls.decode_event(response, worker)
                        if isinstance(event, Tokens):
                            patience = self._decode_stall_s
                        yield event  # at once: from here on someone owns a handoff's lease
                        if isinstance(event, Finished | HandedOff):
                            await _closed(call)
                            return
                finally:
                    call.cancel()
        raise errors.Unavailable(f"worker {worker.worker_id} ended its stream in the middle")


async def _read(call: Any, patience_s: float, vigil: Vigil) -> Any:
    """The call's next message; Unavailable after a silence of `patience_s`."""
    async with vigil.waiting(patience_s):
        return await call.read()


async def _closed(call: Any) -> None:
    """Lets a worker that has finished close its side, so that it doesn't see a cancel."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSING_S):
            await call.code()


@contextmanager
def _failures(worker: Worker, deadline: Deadline) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise _explained(error, worker, deadline) from error


def _explained(error: grpc.RpcError, worker: Worker, deadline: Deadline) -> errors.BatonError:
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        if deadline.passed(_CLOCK_SKEW_S):
            return errors.DeadlineExceeded("the request's deadline passed")
        return errors.Unavailable(f"worker {worker.worker_id} took too long")
    told = errors.from_rpc_error(error)
    if code in _TRANSPORT_CODES and not _has_details(error):
        return errors.Unavailable(f"worker {worker.worker_id}: {told.message}")
    return told


def _has_details(error: Any) -> bool:
    return "grpc-status-details-bin" in dict(error.trailing_metadata() or ())
