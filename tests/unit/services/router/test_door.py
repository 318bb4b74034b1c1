"""The router's door over real gRPC: who gets in with which key."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton import errors
from baton import keys as api_keys
from baton.keys import Owner
from baton.v1 import inference_pb2, inference_pb2_grpc, telemetry_pb2, telemetry_pb2_grpc
from services.common import rpc
from services.router.door import TENANT_METHODS, Door
from services.router.keys import Keys
from services.router.service import SERVICE_NAME, InferenceService
from tests.support.router_parts import RouterParts

A_KEY, B_KEY, OPERATOR_KEY = (api_keys.new_key() for _ in range(3))
LINES = "\n".join(
    [
        api_keys.line_of(A_KEY, Owner("a")),
        api_keys.line_of(B_KEY, Owner("b")),
        api_keys.line_of(OPERATOR_KEY, Owner("ops", operator=True)),
    ]
)


class FakeStatus:
    async def ask(self, _check_integrity):
        return inference_pb2.GetFleetResponse()


class Spans(telemetry_pb2_grpc.TelemetryServiceServicer):
    async def ListSpans(self, _request, _context):
        return telemetry_pb2.ListSpansResponse()


class Served:
    """A router that uses keys."""

    def __init__(self, server, channel, reports):
        self.server = server
        self.channel = channel
        self.stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self.reports = reports

    async def generate(self, *metadata, tenant="", text="prompt"):
        request = inference_pb2.GenerateRequest(text=text, tenant=tenant)
        return await ended(self.stub.Generate(request, metadata=metadata, timeout=5))


async def ended(call):
    """None, or the error that the call ended with."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return errors.from_rpc_error(error)
    return None


def bearer(key):
    return ("authorization", f"Bearer {key}")


@pytest.fixture
async def served():
    reports = []
    parts = RouterParts(sinks=[reports.append])
    keys = Keys(LINES)
    await keys.start()
    door = Door(keys)
    service = InferenceService(parts.generator, parts.intake, FakeStatus(), door=door)
    server = await rpc.serve(
        "127.0.0.1:0",
        [
            lambda s: inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, s),
            lambda s: telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server(Spans(), s),
        ],
        [SERVICE_NAME],
        interceptors=[door],
    )
    await server.set_serving(True)
    async with rpc.channel(server.address) as channel:
        yield Served(server, channel, reports)
    await server.stop(0)


async def test_a_key_makes_the_request_its_tenants(served):
    assert await served.generate(bearer(A_KEY)) is None
    assert await served.generate(bearer(B_KEY), tenant="b") is None
    assert await served.generate(("authorization", f"bearer  {OPERATOR_KEY} ")) is None
    assert [one.generation.urgency.tenant for one in served.reports] == ["a", "b", "ops"]


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [bearer("")],
        [bearer(A_KEY[:-1])],
        [bearer(A_KEY + "x")],
        [bearer("x" * 4000)],
        [bearer(api_keys.digest_of(A_KEY))],
        [("authorization", A_KEY)],
        [("authorization", f"Basic {A_KEY}")],
        [bearer(A_KEY), bearer(B_KEY)],
        [("x-api-key", A_KEY)],
    ],
)
async def test_without_a_known_key_nobody_gets_in_and_all_are_told_the_same(served, metadata):
    for tenant in ("", "a"):
        error = await served.generate(*metadata, tenant=tenant)
        assert isinstance(error, errors.Unauthenticated)
        assert error.message == str((await served.generate()).message)
        assert error.retry_after is None
    assert served.reports == []


async def test_a_key_is_no_other_tenants(served):
    for key in (A_KEY, OPERATOR_KEY):
        error = await served.generate(bearer(key), tenant="b")
        assert isinstance(error, errors.PermissionDenied)
        assert (error.reason, error.field) == ("WRONG_TENANT", "tenant")
    assert served.reports == []


METHODS = {
    name: getattr(inference_pb2, f"{name}Request")
    for name in inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].methods_by_name
}
FOR_OPERATORS = ["GetFleet", "ListRequests", "GetTrace"]


def test_every_method_is_for_tenants_or_for_operators():
    tenants = {method.rpartition("/")[2] for method in TENANT_METHODS}
    assert set(METHODS) == tenants | set(FOR_OPERATORS)
    assert not tenants & set(FOR_OPERATORS)


@pytest.mark.parametrize("name", FOR_OPERATORS)
async def test_only_operators_see_everything(served, name):
    method, request = getattr(served.stub, name), METHODS[name]()
    denied = await ended(method(request, metadata=[bearer(A_KEY)], timeout=5))
    assert isinstance(denied, errors.PermissionDenied)
    assert denied.reason == "NOT_OPERATOR"
    assert isinstance(await ended(method(request, timeout=5)), errors.Unauthenticated)
    let_in = await ended(method(request, metadata=[bearer(OPERATOR_KEY)], timeout=5))
    assert not isinstance(let_in, errors.PermissionDenied | errors.Unauthenticated)


async def test_spans_are_for_operators_too(served):
    stub, request = (
        telemetry_pb2_grpc.TelemetryServiceStub(served.channel),
        (telemetry_pb2.ListSpansRequest()),
    )
    assert isinstance(await ended(stub.ListSpans(request, timeout=5)), errors.Unauthenticated)
    metadata = [bearer(A_KEY)]
    denied = await ended(stub.ListSpans(request, metadata=metadata, timeout=5))
    assert isinstance(denied, errors.PermissionDenied)
    assert await ended(stub.ListSpans(request, metadata=[bearer(OPERATOR_KEY)], timeout=5)) is None


async def test_the_model_needs_any_key(served):
    request = inference_pb2.GetModelRequest()
    assert isinstance(await ended(served.stub.GetModel(request)), errors.Unauthenticated)
    assert await ended(served.stub.GetModel(request, metadata=[bearer(A_KEY)])) is None


async def test_health_needs_none(served):
    stub = health_pb2_grpc.HealthStub(served.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_no_log_has_a_key(served, caplog):
    caplog.set_level("DEBUG")
    await served.generate(bearer(A_KEY), text="")
    await served.generate(bearer(A_KEY + "x"))
    await served.generate(bearer(A_KEY), tenant="b")
    assert A_KEY[3:] not in caplog.text
