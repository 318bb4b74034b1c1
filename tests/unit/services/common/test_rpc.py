import asyncio

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from baton import errors
from baton.local.plan import free_port
from baton.v1 import inference_pb2, transfer_pb2, transfer_pb2_grpc
from services.common import rpc
from services.common.telemetry.health import LIVE, SILENCE_S, Health
from services.common.wire import ParseFailure, safe_parser
from tests.support.proxy import Proxy

LOOKUP = "/baton.v1.TransferService/Lookup"


class Echo(transfer_pb2_grpc.TransferServiceServicer):
    async def Lookup(self, request, context):
        return transfer_pb2.LookupResponse(held=[True] * len(request.names))


class Silent(transfer_pb2_grpc.TransferServiceServicer):
    """Answers after a while."""

    async def Lookup(self, request, context):
        await asyncio.sleep(30)
        return transfer_pb2.LookupResponse()


@pytest.fixture
async def server():
    running = await rpc.serve(
        "127.0.0.1:0",
        [lambda s: transfer_pb2_grpc.add_TransferServiceServicer_to_server(Echo(), s)],
        ["baton.v1.TransferService"],
    )
    yield running
    await running.stop(0)


async def test_health_follows_what_the_service_says(server):
    async with rpc.channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        check = health_pb2.HealthCheckRequest()
        before = await health.Check(check, timeout=5)
        await server.set_serving(True)
        after = await health.Check(check, timeout=5)
    assert before.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert after.status == health_pb2.HealthCheckResponse.SERVING


async def test_health_tells_of_the_process_by_another_name():
    """Whether it wants to be asked changes nothing there."""
    process, troubles = Health(), [""]
    process.watch(lambda: troubles[0])
    running = await rpc.serve("127.0.0.1:0", [], [], process=process)
    async with rpc.channel(running.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def ask(name):
            asked = health_pb2.HealthCheckRequest(service=name)
            answer = await stub.Check(asked, timeout=5)
            return answer.status == health_pb2.HealthCheckResponse.SERVING

        assert (await ask(""), await ask(LIVE), process.ready) == (False, True, False)
        await running.set_serving(True)
        assert (await ask(""), await ask(LIVE), process.ready) == (True, True, True)
        troubles[0] = "nothing is done"
        await process.beat()
        assert (await ask(""), await ask(LIVE)) == (True, False)
        troubles[0] = ""
        await process.beat()
        await running.set_serving(False)
        assert (await ask(""), await ask(LIVE), process.ready) == (False, True, False)
    await running.stop(0)


async def test_a_process_that_was_slow_to_start_lives():
    now = [0.0]
    process = Health(lambda: now[0])
    process.start()
    now[0] = SILENCE_S + 1  # what came before the server kept the event loop for so long
    running = await rpc.serve("127.0.0.1:0", [], [], process=process)
    async with rpc.channel(running.address) as channel:
        asked = health_pb2.HealthCheckRequest(service=LIVE)
        answer = await health_pb2_grpc.HealthStub(channel).Check(asked, timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await running.stop(0)
    await process.close()


def test_reflection_describes_the_service():
    """Over a synchronous channel, as command-line tools use it."""
    import threading

    started, stop, address = threading.Event(), threading.Event(), []

    async def run():
        running = await rpc.serve(
            "127.0.0.1:0",
            [lambda s: transfer_pb2_grpc.add_TransferServiceServicer_to_server(Echo(), s)],
            ["baton.v1.TransferService"],
        )
        address.append(running.address)
        started.set()
        while not stop.is_set():
            await asyncio.sleep(0.01)
        await running.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(10)
        with grpc.insecure_channel(address[0]) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            assert "baton.v1.TransferService" in database.get_services()
            service = DescriptorPool(database).FindServiceByName("baton.v1.TransferService")
            assert "Reserve" in service.methods_by_name
    finally:
        stop.set()
        thread.join(10)


async def test_a_peer_that_vanished_without_a_word_is_noticed():
    """Its connection stays open, and nothing passes any more."""
    running = await rpc.serve(
        "127.0.0.1:0",
        [lambda s: transfer_pb2_grpc.add_TransferServiceServicer_to_server(Silent(), s)],
        [],
    )
    proxy = Proxy(running.address)
    proxy.start()
    try:
        async with rpc.channel(proxy.address) as channel:
            stub = transfer_pb2_grpc.TransferServiceStub(channel)
            call = asyncio.ensure_future(stub.Lookup(transfer_pb2.LookupRequest(), timeout=30))
            await asyncio.sleep(0.3)
            with proxy.stalled(), pytest.raises(grpc.aio.AioRpcError) as failed:
                async with asyncio.timeout(12):
                    await call
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        proxy.close()
        await running.stop(0)


async def test_a_busy_peer_has_time_to_take_a_connection(server):
    """Nobody there is an answer at once all the same."""
    proxy = Proxy(server.address)
    proxy.start()
    try:
        with proxy.delayed(0.4):
            async with rpc.channel(proxy.address) as channel:
                stub = transfer_pb2_grpc.TransferServiceStub(channel)
                answer = await stub.Lookup(transfer_pb2.LookupRequest(names=[b"a"]), timeout=10)
        assert list(answer.held) == [True]
    finally:
        proxy.close()
    async with rpc.channel(proxy.address) as channel:
        stub = transfer_pb2_grpc.TransferServiceStub(channel)
        async with asyncio.timeout(1.0):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Lookup(transfer_pb2.LookupRequest(), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_who_comes_back_is_found_soon():
    """However often it was not there."""
    address = f"127.0.0.1:{free_port()}"
    async with rpc.channel(address) as channel:
        stub = transfer_pb2_grpc.TransferServiceStub(channel)
        for _ in range(4):
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Lookup(transfer_pb2.LookupRequest(), timeout=10)
            await asyncio.sleep(0.3)
        running = await rpc.serve(
            address,
            [lambda s: transfer_pb2_grpc.add_TransferServiceServicer_to_server(Echo(), s)],
            [],
        )
        async with asyncio.timeout(3.0):
            await stub.Lookup(transfer_pb2.LookupRequest(), timeout=10, wait_for_ready=True)
        await running.stop(0)


async def test_a_taken_port_is_an_os_error_that_names_it(server):
    with pytest.raises(OSError, match=server.address):
        await rpc.serve(server.address, [], [])


async def test_a_message_that_is_none_blames_the_caller(server):
    async with rpc.channel(server.address) as channel:
        raw = channel.unary_unary(LOOKUP)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await raw(b"\xff\xff\xff", timeout=5)
        error = errors.from_rpc_error(failed.value)
        assert type(error) is errors.InvalidRequest
        assert error.field == "request"
        answer = await raw(transfer_pb2.LookupRequest(names=[b"x"]).SerializeToString(), timeout=5)
    assert transfer_pb2.LookupResponse.FromString(answer).held == [True]


def with_bad_utf8(message):
    """The message's bytes with every BAD replaced by bytes that are not UTF-8."""
    return message.SerializeToString().replace(b"BAD", b"\xc3\x28\xff")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (inference_pb2.GenerateRequest(text="BAD"), "text"),
        (inference_pb2.GenerateRequest(text="good", stop=["fine", "BAD"]), "stop[1]"),
        (
            inference_pb2.GenerateRequest(
                chat=inference_pb2.ChatMessages(
                    messages=[
                        inference_pb2.ChatMessage(role="user", content="good"),
                        inference_pb2.ChatMessage(role="user", content="BAD"),
                    ]
                )
            ),
            "chat.messages[1].content",
        ),
    ],
)
def test_invalid_utf8_is_found_in_its_field(message, field):
    parse = safe_parser(inference_pb2.GenerateRequest.FromString)
    failure = parse(with_bad_utf8(message))
    assert failure == ParseFailure(field, "is not valid UTF-8")
    assert parse(message.SerializeToString()) == message
