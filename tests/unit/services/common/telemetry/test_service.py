"""Traces over real gRPC: who is whose part, and what a process tells of it."""

import grpc
import pytest

from baton import errors
from baton.v1 import telemetry_pb2, telemetry_pb2_grpc, transfer_pb2, transfer_pb2_grpc
from services.common import rpc
from services.common.telemetry import context, tracing
from services.common.telemetry.service import MAX_TRACES
from tests.support.tracing import by_name, everything, traced

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Ask = telemetry_pb2.ListSpansRequest


class Work(transfer_pb2_grpc.TransferServiceServicer):
    async def Lookup(self, request, context):
        with tracing.span("unary", share=0.25, held=True):
            return transfer_pb2.LookupResponse()

    async def Acquire(self, request, context):
        with tracing.span("stream") as span:
            yield transfer_pb2.AcquireResponse()
            span.add_event("more", {"n": 2})
            yield transfer_pb2.AcquireResponse()

    async def ReleaseLease(self, request, context):
        return transfer_pb2.ReleaseLeaseResponse()


@pytest.fixture
def register():
    return lambda server: transfer_pb2_grpc.add_TransferServiceServicer_to_server(Work(), server)


async def call_all(channel, **options):
    stub = transfer_pb2_grpc.TransferServiceStub(channel)
    await stub.Lookup(transfer_pb2.LookupRequest(), timeout=5, **options)
    async for _ in stub.Acquire(transfer_pb2.AcquireRequest(), timeout=5, **options):
        pass
    await stub.ReleaseLease(transfer_pb2.ReleaseLeaseRequest(), timeout=5, **options)


async def test_calls_belong_to_the_span_in_which_they_are_made(register):
    async with traced("worker-0") as running:
        server = await rpc.serve("127.0.0.1:0", [register], [])
        async with rpc.channel(server.address) as channel:
            with tracing.span("caller") as span:
                await call_all(channel)
            answer = await telemetry_pb2_grpc.TelemetryServiceStub(channel).ListSpans(
                Ask(trace_ids=[context.trace_id_of(span), b"\1" * 16]), timeout=5
            )
        await server.stop(0)
    caller, unary, stream = answer.spans
    assert [one.name for one in answer.spans] == ["caller", "unary", "stream"]
    assert {one.parent_span_id for one in (unary, stream)} == {caller.span_id}
    assert {one.process for one in answer.spans} == {"worker-0"}
    assert dict(unary.attributes) == {"baton.share": "0.25", "baton.held": "true"}
    assert [(one.name, dict(one.attributes)) for one in stream.events] == [("more", {"n": "2"})]
    assert stream.events[0].offset.ToNanoseconds() <= stream.duration.ToNanoseconds()
    assert len(everything(running.ring)) == 3, "calls have no spans by themselves"


async def test_a_parent_that_the_caller_names_itself_is_the_one(register):
    async with traced() as running:
        server = await rpc.serve("127.0.0.1:0", [register], [])
        async with rpc.channel(server.address) as channel:
            with tracing.span("other"):
                await call_all(channel, metadata=(("traceparent", PARENT),))
        await server.stop(0)
    spans = by_name(running.ring)
    for name in ("unary", "stream"):
        assert spans[name].trace_id.hex() == PARENT[3:35]
        assert spans[name].parent_id.hex() == PARENT[36:52]


async def test_calls_without_a_span_begin_traces_of_their_own(register):
    async with traced() as running:
        server = await rpc.serve("127.0.0.1:0", [register], [])
        async with rpc.channel(server.address) as channel:
            await call_all(channel)
        await server.stop(0)
    assert len({one.trace_id for one in everything(running.ring)}) == 2


@pytest.mark.parametrize(
    ("trace_ids", "field"),
    [([b"\1" * 16, b"short"], "trace_ids[1]"), ([b"\1" * 16] * (MAX_TRACES + 1), "trace_ids")],
)
async def test_bad_questions_name_their_field(register, trace_ids, field):
    async with traced():
        server = await rpc.serve("127.0.0.1:0", [register], [])
        async with rpc.channel(server.address) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                stub = telemetry_pb2_grpc.TelemetryServiceStub(channel)
                await stub.ListSpans(Ask(trace_ids=trace_ids), timeout=5)
        await server.stop(0)
    told = errors.from_rpc_error(raised.value)
    assert isinstance(told, errors.InvalidRequest)
    assert told.field == field
