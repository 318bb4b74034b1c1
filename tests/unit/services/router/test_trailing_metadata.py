"""Every answer explains itself in its trailing metadata, over real gRPC; workers are fakes."""

import grpc
import pytest

from baton import errors
from baton.v1 import inference_pb2, inference_pb2_grpc
from services.common import rpc
from services.router.service import SERVICE_NAME, InferenceService
from tests.support.router_parts import RouterParts
from tests.support.tracing import traced

Request = inference_pb2.GenerateRequest
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


@pytest.fixture
async def served():
    """(what is behind it, a stub) of a served router."""
    parts = RouterParts()
    async with traced():
        service = InferenceService(parts.generator, parts.intake, None)
        server = await rpc.serve(
            "127.0.0.1:0",
            [lambda s: inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, s)],
            [SERVICE_NAME],
        )
        async with rpc.channel(server.address) as channel:
            yield parts, inference_pb2_grpc.InferenceServiceStub(channel)
        await server.stop(0)


def told_by(metadata):
    told = dict(metadata)
    return inference_pb2.RequestReport.FromString(told["baton-report-bin"]), told


async def test_an_answer(served):
    _, stub = served
    call = stub.Generate(Request(text="hi"), timeout=5, metadata=(("traceparent", PARENT),))
    *_, last = [event async for event in call]
    report, told = told_by(await call.trailing_metadata())
    assert report.request_id == last.completed.request_id
    assert report.outcome == inference_pb2.REQUEST_OUTCOME_COMPLETED
    first = last.completed.timings.time_to_first_token
    assert report.timings.time_to_first_token == first
    assert told["baton-trace-id"] == report.trace_id.hex() == PARENT[3:35]
    assert "ttft" in told["baton-explanation"]


async def test_an_error_after_the_turn_keeps_its_details(served):
    parts, stub = served
    parts.legs.prefill_faults = [errors.Unavailable("worker went", reason="GONE")] * 20
    with pytest.raises(grpc.RpcError) as raised:
        async for _ in stub.Generate(Request(text="hi"), timeout=5):
            pass
    assert errors.from_rpc_error(raised.value).reason == "GONE"
    report, told = told_by(raised.value.trailing_metadata())
    assert (report.outcome, report.reason) == (inference_pb2.REQUEST_OUTCOME_FAILED, "GONE")
    assert told["baton-explanation"].endswith("failed (GONE)")
    assert told["baton-trace-id"] == report.trace_id.hex()


async def test_a_request_that_is_wrong_is_not_explained(served):
    _, stub = served
    with pytest.raises(grpc.RpcError) as raised:
        async for _ in stub.Generate(Request(text="hi", model="other"), timeout=5):
            pass
    assert isinstance(errors.from_rpc_error(raised.value), errors.NotFound)
    assert "baton-report-bin" not in dict(raised.value.trailing_metadata())
