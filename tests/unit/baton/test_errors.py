import grpc
import pytest

from baton import errors
from baton.v1 import transfer_pb2, transfer_pb2_grpc
from services.common import rpc


def every_error():
    return [
        errors.InvalidRequest("sampling.top_p", "7 is above 1"),
        errors.Unauthenticated("no key"),
        errors.PermissionDenied("wrong key"),
        errors.NotFound("unknown model 'x'", reason="UNKNOWN_MODEL"),
        errors.Exhausted("queue full", retry_after=1.5),
        errors.LayoutMismatch("a is not b"),
        errors.LostRace("no room", reason="NO_ROOM"),
        errors.Unavailable("draining", retry_after=0.25),
        errors.DeadlineExceeded("too late"),
        errors.Cancelled("gone"),
        errors.InternalError("bug"),
    ]


class Failing(transfer_pb2_grpc.TransferServiceServicer):
    def __init__(self, error):
        self.error = error

    async def Lookup(self, request, context):
        raise self.error

    async def Acquire(self, request, context):
        yield transfer_pb2.AcquireResponse(missing=[b"one"])
        raise self.error


async def call_failing(error):
    """What a client sees of a unary and of a streaming call that fail with `error`."""
    servicer = Failing(error)
    server = await rpc.serve(
        "127.0.0.1:0",
        [lambda s: transfer_pb2_grpc.add_TransferServiceServicer_to_server(servicer, s)],
        ["baton.v1.TransferService"],
    )
    seen = []
    async with rpc.channel(server.address) as channel:
        stub = transfer_pb2_grpc.TransferServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as unary:
            await stub.Lookup(transfer_pb2.LookupRequest(), timeout=5)
        seen.append(errors.from_rpc_error(unary.value))
        messages = []
        with pytest.raises(grpc.aio.AioRpcError) as stream:
            async for message in stub.Acquire(transfer_pb2.AcquireRequest(), timeout=5):
                messages.append(message)
        assert len(messages) == 1
        seen.append(errors.from_rpc_error(stream.value))
    await server.stop(0)
    return seen


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
async def test_an_error_survives_the_wire_whole(error):
    for seen in await call_failing(error):
        assert type(seen) is type(error)
        assert seen.message == error.message
        assert str(seen) == str(error)
        assert seen.reason == error.reason
        assert seen.field == error.field
        assert seen.retry_after == error.retry_after


async def test_a_bug_becomes_internal_and_says_what_it_was():
    for seen in await call_failing(ZeroDivisionError("by zero")):
        assert type(seen) is errors.InternalError
        assert "ZeroDivisionError: by zero" in seen.message


async def test_nobody_there_is_unavailable():
    async with rpc.channel("127.0.0.1:1") as channel:
        stub = transfer_pb2_grpc.TransferServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.Lookup(transfer_pb2.LookupRequest(), timeout=5)
    assert type(errors.from_rpc_error(failed.value)) is errors.Unavailable
